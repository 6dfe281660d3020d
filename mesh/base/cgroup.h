#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace meshtrain {

/// The limits of this process's control groups, which containers and batch systems set. A process is held to those of
/// its own group and of every group around it: the lowest counts. Versions 1 and 2, or both. Files that are missing, or
/// that name no number, set no limit. Every call reads them anew.
class Cgroups {
 public:
  /// `root`: the folder that has proc and sys; another than "/" is for tests.
  explicit Cgroups(std::filesystem::path root = "/") : root_(std::move(root)) {}

  struct Quota {
    double processors;  ///< seconds of processors that the group may use in a second
    uint64_t group;     ///< a number of the group that sets the limit: the same for all of its processes
  };
  /// Returns the limit of cpu.max, or of cpu.cfs_quota_us of version 1.
  std::optional<Quota> processors() const;

  /// Returns the bytes that the groups may still allocate: memory.max, or memory.limit_in_bytes of version 1, less what
  /// is in use. Files in the page cache that nobody has used lately (inactive_file) count as free.
  std::optional<int64_t> memory() const;

 private:
  enum class Version { One, Two };
  /// Returns the folder of this process's group under `controller`, and those of the groups around it.
  std::vector<std::filesystem::path> folders(Version version, const std::string& controller) const;

  std::filesystem::path root_;
};

}  // namespace meshtrain

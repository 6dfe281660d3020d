#pragma once

#include <filesystem>

#include "mesh/group.h"

namespace meshtrain::testing {

/// A new folder for one test, the same on every rank of `world`, removed at the end. Collective.
class ScratchFolder {
 public:
  explicit ScratchFolder(const Group& world = Group());
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  Group world_;
  std::filesystem::path path_;
};

}  // namespace meshtrain::testing

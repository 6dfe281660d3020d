#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "mesh/base/files/descriptor.h"

namespace meshtrain {

/// Returns the largest step in the lines of `file`, which JsonLines wrote; 0 when it has none or does not exist. Throws
/// std::runtime_error when it cannot be read.
int64_t last_step_in(const std::filesystem::path& file);

/// A file of JSON objects, one a line and step, in the order of steps; each is written at once. One rank writes it.
class JsonLines {
 public:
  /// Opens `file` to append; lines of steps after `last_step` are cut off, and `on_cut` is called with each of them
  /// before. Throws std::runtime_error.
  JsonLines(std::filesystem::path file, int64_t last_step,
            const std::function<void(const std::string& line)>& on_cut = {});

  /// `object`: JSON on one line, with a key `step`. Throws std::runtime_error, naming the file, when it cannot be
  /// written (a full disk).
  void append(const std::string& object);
  /// Makes durable what was appended. Throws std::runtime_error as append().
  void sync();
  /// Closes the file; nothing may be appended afterwards. Some file systems report a failed write only then. Throws
  /// std::runtime_error as append() does. Without finish() the destructor closes the file, and such a failure is lost.
  void finish();
  /// Returns how many lines the constructor cut off.
  int64_t num_cut() const { return num_cut_; }
  /// Returns the steps up to `last_step` that had no line: "step 3, steps 5 to 8"; empty when all have one.
  const std::string& missing() const { return missing_; }

 private:
  std::filesystem::path file_;
  Descriptor descriptor_;
  int64_t num_cut_ = 0;
  std::string missing_;
  bool is_named_ = false;  // its name is durable in its folder
};

}  // namespace meshtrain

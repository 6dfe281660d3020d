#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace meshtrain {

/// The largest step of the lines of `file`, as JsonLines writes it; 0 when it has none or does not exist. Throws
/// std::runtime_error when it cannot be read.
int64_t last_step_in(const std::filesystem::path& file);

/// A file of one JSON object a line and step, in the order of steps, each written through at once. Of one rank.
class JsonLines {
 public:
  /// Opens `file` to append; lines of steps after `last_step` are cut off. Throws std::runtime_error.
  JsonLines(std::filesystem::path file, int64_t last_step);
  ~JsonLines();
  JsonLines(const JsonLines&) = delete;
  JsonLines& operator=(const JsonLines&) = delete;

  /// `object`: JSON on one line, with a key `step`. Throws std::runtime_error, naming the file, when it cannot be
  /// written (a full disk).
  void append(const std::string& object);
  /// Makes durable what was appended. Throws std::runtime_error as append().
  void sync();
  /// Closes the file, after which nothing is appended: a file system may report only then that it could not write.
  /// Throws std::runtime_error as append(). Without it the destructor closes, and reports nothing.
  void finish();
  /// How many lines were cut off at the beginning.
  int64_t num_cut() const { return num_cut_; }
  /// The steps up to `last_step` that had no line: "step 3, steps 5 to 8"; empty: none.
  const std::string& missing() const { return missing_; }

 private:
  std::filesystem::path file_;
  int descriptor_;
  int64_t num_cut_ = 0;
  std::string missing_;
  bool is_named_ = false;  // for good, in its folder
};

}  // namespace meshtrain

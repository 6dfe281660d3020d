#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

/// One start of a run, as its log tells it.
struct RunStart {
  enum class End { Open, Done, Stopped, Interrupted };

  double begin = 0;  ///< seconds since 1970 of the first and the last line; 0: unknown
  double end = 0;
  std::string model;                 ///< "3,213,568 parameters"
  std::string mesh;                  ///< "dp=2,cp=2,tp=2"
  int64_t resumed_after = 0;         ///< step; 0: began at the first
  int64_t last_step = 0;             ///< the last one that has a line; 0: none
  int64_t num_steps = 0;             ///< train.steps
  End how = End::Open;               ///< Interrupted: another start follows, and this one did not say that it stopped
  std::vector<std::string> changes;  ///< of the recipe: "train.steps: 500, was 300"
};

/// A checkpoint that a start wrote.
struct WrittenLine {
  int64_t step = 0;
  double time = 0;     ///< seconds since 1970
  double seconds = 0;  ///< that it took
};

/// The content of a console.log: what the program printed, each line with time and level. Lines that mean nothing here
/// are left out.
class RunLog {
 public:
  static constexpr size_t kMostKept = 1000;  ///< of starts, of checkpoints, of warnings

  void add(std::string_view line);

  const std::vector<RunStart>& starts() const { return starts_; }
  const std::vector<WrittenLine>& checkpoints() const { return checkpoints_; }
  /// Returns the different warnings, without "warning: ".
  const std::vector<std::string>& warnings() const { return warnings_; }
  int64_t num_lines() const { return num_lines_; }

 private:
  void begin_start(std::string_view text);
  /// Returns true for a line of the start that runs.
  bool read(std::string_view text, double time);

  std::vector<RunStart> starts_;
  std::vector<WrittenLine> checkpoints_;
  std::vector<std::string> warnings_;
  bool lists_changes_ = false;  // the line before was that of a resume, or a change
  int64_t num_lines_ = 0;
};

/// Returns the seconds since 1970 of "2026-03-01 12:00:05.250+01:00", or without a zone in the local one; 0 when it is
/// no such time.
double seconds_of(std::string_view time);

}  // namespace meshtrain

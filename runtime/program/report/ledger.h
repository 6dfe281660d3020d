#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshtrain {

/// One start of a run in its goodput ledger.
struct LedgerStart {
  double start = 0;  ///< seconds since 1970; 0: unknown
  double end = 0;
  int64_t ranks = 0;
  std::string mesh;
  int64_t from_step = 0;
  int64_t to_step = 0;
  std::string ended;                      ///< "done", "stopped", "failed", "killed"; empty: unknown
  std::map<std::string, double> seconds;  ///< by part: "training", "checkpoint", "lost"
};

/// The content of a goodput.jsonl: where the time of a run went, over all its starts.
class Ledger {
 public:
  static constexpr size_t kMostStarts = 10'000;

  /// Reads a line. One that is damaged is counted and changes nothing. A line with the same `start` as the one before
  /// replaces it.
  void add(std::string_view line);

  const std::vector<LedgerStart>& starts() const { return starts_; }
  int64_t num_damaged() const { return num_damaged_; }
  /// Returns the seconds between the first start and the last end; 0 when unknown.
  double wall_seconds() const;
  /// Returns the seconds of each part over all starts, in the order in which a report has them, and "idle", the time
  /// between one start's end and the next one. Parts without time are left out.
  std::vector<std::pair<std::string, double>> parts() const;

 private:
  std::vector<LedgerStart> starts_;
  int64_t num_damaged_ = 0;
};

}  // namespace meshtrain

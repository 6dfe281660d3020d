#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/program/report/checkpoint_list.h"
#include "runtime/program/report/forecast_record.h"
#include "runtime/program/report/ledger.h"
#include "runtime/program/report/line_follower.h"
#include "runtime/program/report/log_warnings.h"
#include "runtime/program/report/metrics_reader.h"
#include "runtime/program/report/run_events.h"
#include "runtime/program/yaml/flat_keys.h"

namespace meshtrain {

/// Everything that a run directory says of its run. Any of its files may be missing or damaged.
struct RunRecord {
  std::filesystem::path folder;
  std::string name;  ///< the folder's own name, made unique among the runs of a report by who reads several
  MetricsReader metrics;
  LogWarnings warnings;
  RunEvents events;
  Ledger ledger;
  std::vector<RunStart> starts;                       ///< of events and ledger
  FlatKeys recipe;                                    ///< as run; empty when unreadable
  std::vector<std::pair<std::string, int64_t>> mesh;  ///< axes and sizes, outermost first, then ep
  std::vector<std::string> hosts;                     ///< the host of each rank; empty when unknown
  std::optional<ForecastRecord> forecast;             ///< none for runs without one
  std::vector<ListedCheckpoint> checkpoints;
  std::vector<std::string> flight;    ///< names of the flight records
  std::vector<std::string> problems;  ///< what could not be read, a line each

  /// Returns the value of a key of the recipe; empty when it has none.
  std::string recipe_value(const std::string& key) const;
  /// Returns the number of ranks of the mesh.
  int64_t num_ranks() const;
  /// Returns the mesh of the last start: "dp=2,cp=2,tp=2"; empty when unknown.
  std::string mesh_text() const;
  /// Returns "mesh dp=8, 8 ranks" for people, or all meshes that the run's steps were made on, with the steps; empty
  /// when unknown.
  std::string meshes_text() const;
  /// Returns train.steps; 0 when unknown.
  int64_t num_steps() const;
};

/// Reads a run directory, again and again while the run goes on: of files that grow only what is new.
class RunReader {
 public:
  /// Throws InputError unless `folder` exists and is a run directory.
  explicit RunReader(std::filesystem::path folder);

  /// Reads what has changed since the last call. Returns whether anything did. Files that cannot be read become
  /// RunRecord::problems; nothing throws.
  bool refresh();
  const RunRecord& record() const { return record_; }
  void rename(const std::string& name) { record_.name = name; }

 private:
  void read_problems(const std::string& what, const std::function<void()>& action);
  void follow(LineFollower& file, const std::function<void()>& forget,
              const std::function<void(std::string_view)>& add);

  RunRecord record_;
  LineFollower metrics_, log_, events_, ledger_;
  bool changed_ = false;
};

}  // namespace meshtrain

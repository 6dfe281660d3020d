#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/program/report/ledger.h"

namespace meshtrain {

/// The failure of a rank, or a stall that it causes, as events.jsonl has it.
struct FailedRank {
  int64_t rank = -1;    ///< -1: all ranks alike
  std::string cause;    ///< the name of a FailureCause: "killed"
  std::string message;  ///< the line that was printed
  int64_t step = 0;     ///< 0: unknown
};

/// One start of a run.
struct RunStart {
  enum class End {
    Open,
    Done,
    Stopped,
    Failed,       ///< `failures` may say why
    Interrupted,  ///< another start follows, and this one has no end
  };

  double begin = 0;           ///< seconds since 1970; 0: unknown
  double end = 0;             ///< the time of the last event or step
  std::string model;          ///< "3,213,568 parameters"
  std::string mesh;           ///< "dp=2,cp=2,tp=2"; empty: unknown
  int64_t resumed_after = 0;  ///< step; 0: began at the first
  int64_t last_step = 0;      ///< the last that is known to be made; 0: none
  int64_t num_steps = 0;      ///< train.steps; 0: unknown
  End how = End::Open;
  std::vector<std::string> changes;  ///< of the recipe: "train.steps: 500, was 300"
  std::vector<FailedRank> failures;  ///< that end the start
  std::vector<FailedRank> stalls;    ///< the one that has not ended; at most one
  bool has_begun = true;             ///< false: it failed before its first step could begin
};

/// A checkpoint that a start wrote.
struct CheckpointTime {
  int64_t step = 0;
  double seconds = 0;  ///< that it took
};

/// The content of an events.jsonl. Events of later versions that mean nothing here are left out.
class RunEvents {
 public:
  static constexpr size_t kMostKept = 1000;  ///< of starts, of checkpoints, of failures of a start

  /// Reads a line. One that is damaged is counted and changes nothing.
  void add(std::string_view line);

  const std::vector<RunStart>& starts() const { return starts_; }
  const std::vector<CheckpointTime>& checkpoints() const { return checkpoints_; }
  int64_t num_damaged() const { return num_damaged_; }

 private:
  RunStart& begin_start();

  std::vector<RunStart> starts_;
  std::vector<CheckpointTime> checkpoints_;
  int64_t num_damaged_ = 0;
};

/// Returns the starts of a run by time: those of `events`, with the last steps that `ledger` knows, and those that only
/// the ledger has, which earlier versions wrote.
std::vector<RunStart> starts_of(const RunEvents& events, const Ledger& ledger);

/// Consecutive steps that a run made on one mesh.
struct MeshSegment {
  std::string mesh;   ///< "dp=2,tp=2"
  int64_t after = 0;  ///< the step before the first
};

/// Returns the meshes of a run's steps. Steps that a later start made again count for the later start.
std::vector<MeshSegment> mesh_segments(const std::vector<RunStart>& starts);

/// Returns a text about the meshes of a run's steps: "dp=4 (steps 1 to 200), then dp=2,tp=2 (from step 201)". With one
/// mesh it is the mesh alone; empty when no mesh is known.
std::string meshes_of(const std::vector<RunStart>& starts);

}  // namespace meshtrain

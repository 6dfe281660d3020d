#pragma once

#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <string>

#include "mesh/group.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/piece_writer.h"
#include "runtime/recipe/recipe.h"
#include "runtime/run/checkpoint_disks.h"
#include "runtime/trainer/trainer.h"

namespace meshtrain {

struct WrittenCheckpoint {
  int64_t step;
  double seconds;  ///< from the end of the step to that of the one that found it durable
};

/// The checkpoints that a run writes. A save copies what this rank owns to host memory; a thread writes it. When every
/// rank has said in a step's vote that its part is durable, rank 0 is told of all parts and writes the manifest, in the
/// background too; when that is durable, every rank looks whether its file is still there, and the folder is given its
/// name on all hosts. Only then old ones go. Every rank constructs the same and makes the same calls. A failure on one
/// rank is thrown by all as AgreedError.
class Checkpoints {
 public:
  /// `head`: what every checkpoint says, whose state is not looked at. `trainer` outlives this. Nothing is written yet.
  Checkpoints(const CheckpointRecipe& recipe, CheckpointDisks disks, CheckpointHead head, const Trainer& trainer,
              const Group& world);
  /// Removes what is there of a checkpoint that failed: by then its error was reported, however long this takes.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Begins the checkpoint of `state`. Nothing else may go on: finish() comes before. Collective.
  void save(const TrainingState& state);
  /// Whether this rank has nothing left to do for what goes on: for the vote. No collective.
  bool done() const { return done_within({}); }
  /// Call when every rank is done. The checkpoint that is complete by this, if any.
  std::optional<WrittenCheckpoint> advance();
  /// Waits until nothing goes on; a rank that waits for its disk says so on stderr every minute, or every
  /// MESHTRAIN_SLOW_WRITE seconds. The checkpoint that is complete by this, if any. None of one that has failed.
  std::optional<WrittenCheckpoint> finish();

 private:
  enum class Stage { Idle, Pieces, Manifest, Failed };

  bool done_within(std::chrono::milliseconds patience) const;
  /// Waits for done(), saying so.
  void await_disk() const;
  void gather_parts();
  void complete();
  /// `action`: collective, throws on all ranks or on none; what it throws is thrown as the failure of this checkpoint.
  void complete_or_fail(const std::function<void()>& action);
  [[noreturn]] void fail(const std::string& reason);

  CheckpointRecipe recipe_;
  CheckpointDisks disks_;
  CheckpointHead head_;
  Group world_;
  ShardMemory memory_;
  PieceWriter pieces_;
  Stage stage_ = Stage::Idle;
  std::chrono::steady_clock::time_point begun_;  // what goes on
  std::future<size_t> manifest_;                 // of rank 0: its bytes
};

/// Puts into `trainer`, from pieces of the checkpoint in `folder`, what this rank keeps; from one of step 0 weights,
/// and zeros into what the optimizer keeps. Throws InputError, before anything is used, when a piece is missing or
/// damaged. No collective; Trainer::resume() comes next.
void read_shards(const std::filesystem::path& folder, const Manifest& manifest, const Trainer& trainer);

}  // namespace meshtrain

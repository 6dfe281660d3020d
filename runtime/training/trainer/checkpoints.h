#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <string>

#include "mesh/group.h"
#include "runtime/training/checkpoint/checkpoint_disks.h"
#include "runtime/training/checkpoint/manifest.h"
#include "runtime/training/checkpoint/piece_writer.h"
#include "runtime/training/trainer/trainer.h"

namespace meshtrain {

/// The choice of checkpoints that a run keeps after it has written another.
struct KeptCheckpoints {
  int64_t last = 0;   ///< number of newest checkpoints; 0: all
  int64_t every = 0;  ///< also keeps steps that are multiples of this; 0: no others
};

struct WrittenCheckpoint {
  int64_t step;
  double seconds;  ///< from the end of the saved step to the end of the step that found the checkpoint durable
};

/// The checkpoints that a run writes. save() copies the data that this rank owns, except what is on disk, to other host
/// memory, and a thread writes the copy. When every rank has reported in a step's vote that its part is durable, rank 0
/// gathers the descriptions of all parts and writes the manifest in the background. When the manifest is durable, every
/// rank checks that its file still exists, the folder gets its final name on all hosts, and only then old checkpoints
/// are removed. Every rank constructs the same object and makes the same calls. A failure on one rank is thrown by all
/// ranks as AgreedError.
class Checkpoints {
 public:
  /// Writes nothing yet. `head`: the head of every checkpoint; its state is ignored. `trainer` must outlive this.
  Checkpoints(const KeptCheckpoints& kept, CheckpointDisks disks, CheckpointHead head, const Trainer& trainer,
              const Group& world);
  /// Removes the files of a checkpoint that failed. The error was reported before, because removing may take long.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Returns the bytes of host memory that the copy of this rank's data takes, from the first save() on.
  int64_t copy_bytes() const { return pieces_.copy_bytes(); }
  /// Begins the checkpoint of `state`. Call finish() first: no other save may be in progress. Collective.
  void save(const TrainingState& state);
  /// Returns true when this rank's part of the save in progress is durable: for the vote. Not collective.
  bool done() const { return done_within({}); }
  /// Continues the save in progress. Call when done() is true on every rank. Returns the checkpoint that this call
  /// completed, if any.
  std::optional<WrittenCheckpoint> advance();
  /// Waits until no save is in progress. A rank that waits for its disk warns every minute, or every
  /// MESHTRAIN_SLOW_WRITE seconds. Returns the checkpoint that this call completed, if any; none when the save failed.
  std::optional<WrittenCheckpoint> finish();

 private:
  enum class Stage { Idle, Pieces, Manifest, Failed };

  bool done_within(std::chrono::milliseconds patience) const;
  /// Waits for done() and reports a slow disk.
  void await_disk() const;
  void gather_parts();
  void complete();
  /// Runs `action`, which is collective and throws on all ranks or on none. Rethrows its error as the failure of this
  /// checkpoint.
  void complete_or_fail(const std::function<void()>& action);
  [[noreturn]] void fail(const std::string& reason);

  KeptCheckpoints kept_;
  CheckpointDisks disks_;
  CheckpointHead head_;
  Group world_;
  const Trainer& trainer_;
  PieceWriter pieces_;
  Stage stage_ = Stage::Idle;
  std::chrono::steady_clock::time_point begun_;  // start of the save in progress
  std::future<size_t> manifest_;                 // on rank 0: number of bytes in the manifest
};

}  // namespace meshtrain

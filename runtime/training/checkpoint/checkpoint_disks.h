#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "mesh/host_map.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"

namespace meshtrain {

/// The options of CheckpointDisks.
struct DiskOptions {
  std::filesystem::path resumed = {};           ///< the checkpoint that rank 0 resumes from; empty without one
  bool has_begun = false;                       ///< rank 0: the run has begun, even if no checkpoint exists
  std::string other_folder = "another folder";  ///< words in messages for what a user may choose instead
};

/// The checkpoints of a run on the disks of its hosts. Hosts share one disk or have one each; every host has the same
/// folder, and its first rank renames and removes checkpoints there. Rank 0's listing alone decides which checkpoints
/// exist. Each of them is complete on every host, at whatever instant any process is killed, because rank 0's host is
/// the last to name a checkpoint and the first to remove it.
class CheckpointDisks {
 public:
  // Every rank must call these functions. An exception on any rank is thrown on all of them, as by agree().

  /// Reads the folders and changes nothing. Throws InputError on all ranks when the folder of a host holds checkpoints
  /// of another run. The run takes the id in rank 0's folder when it has begun or that folder has a checkpoint.
  /// Otherwise the id is new: rank 0's host only took part in a run that rank 0 does not know.
  CheckpointDisks(CheckpointFolder folder, const Group& world, DiskOptions options = {});

  /// Returns the path where this rank writes the checkpoint of `step`. Each start of the run has its own path.
  std::filesystem::path partial(int64_t step) const { return folder_.partial(step, attempt_); }

  /// Removes from each host what a killed run left behind: partly written folders, and parts of checkpoints that rank 0
  /// does not list. Puts the checkpoints after `step`, where the run continues, out of the way; rank 0's host is first,
  /// so that the checkpoints in its listing are complete on all hosts. Returns the steps of those in rank 0's listing
  /// that were put out of the way.
  std::vector<int64_t> settle(int64_t step);

  /// Creates partial(step) on every host.
  void begin(int64_t step);
  /// Gives the checkpoint of `step` its final name on every host. Call when every file in it is durable. An earlier
  /// checkpoint of `step` keeps its name until then, and is removed in the background afterwards.
  void complete(int64_t step);
  /// Removes, in the background, the checkpoints that are not to be kept. A host that cannot rename one keeps it
  /// and warns once.
  void retire(int64_t keep_last, int64_t keep_every);

  // Not collective.

  /// Returns the id of the run.
  const std::string& run() const { return run_; }
  /// Removes partial(step) from this rank's host. Throws nothing.
  void remove(int64_t step) const;

 private:
  void check_owner(const std::string& resumed) const;
  void settle_host(int64_t step) const;
  /// Runs `action` on one rank of each host, first on rank 0. Collective.
  void for_each_host(const std::function<void()>& action) const;
  std::vector<std::filesystem::path> retire_on_host(std::vector<int64_t>& steps);
  bool acts() const { return hosts_.is_first_of_host(world_.rank()); }
  bool has_rank_0() const { return hosts_.host_of(world_.rank()) == hosts_.host_of(0); }

  CheckpointFolder folder_;
  Group world_;
  DiskOptions options_;
  HostMap hosts_;
  std::string run_;                 // id of the run, as CheckpointFolder::claim() stores it
  std::string attempt_;             // id of this start of the run
  std::vector<int64_t> steps_;      // steps that rank 0 listed at the start, without those that settle() renamed
  std::vector<int64_t> abandoned_;  // abandoned steps that rank 0 listed at the start
  bool has_warned_ = false;
  bool is_claimed_ = false;
  std::future<void> removal_;
};

}  // namespace meshtrain

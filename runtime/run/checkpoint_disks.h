#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "mesh/host_map.h"
#include "runtime/checkpoint/checkpoint_folder.h"

namespace meshtrain {

/// The checkpoints of a run on the disks of its hosts, which share one or have one each: the same folder on every host,
/// renamed and removed by the host's first rank. Rank 0's listing alone says which checkpoints there are, and what it
/// lists is complete on every host, at whatever instant any process is killed: rank 0's host is the last to give a
/// checkpoint its name and the first to take it away.
class CheckpointDisks {
 public:
  // Every rank must call these; what is thrown on any rank is thrown on all, as by agree().

  /// Reads the folders and changes nothing. `resumed`: rank 0's checkpoint to go on from, empty without one. Every rank
  /// must call it. Throws InputError on all of them when the folder of a host holds checkpoints of another run. The id
  /// that rank 0's folder has is this run's if metrics.jsonl or a checkpoint is there; else that host was one of the
  /// others of a run that rank 0 does not know.
  CheckpointDisks(CheckpointFolder folder, const Group& world, const std::filesystem::path& resumed);

  /// Where this rank writes the checkpoint of `step`. A path of this start of the run alone.
  std::filesystem::path partial(int64_t step) const { return folder_.partial(step, attempt_); }

  /// Removes from each host what a run left behind that was killed: folders half written, and parts of
  /// checkpoints that rank 0 does not list. Puts those after `step`, from which the run goes on, out of the way, on
  /// rank 0's host first, so that what it lists is complete on all.
  void settle(int64_t step) const;

  /// Makes partial(step) on every host.
  void begin(int64_t step);
  /// Gives the checkpoint of `step` its name on every host, for good. Every file in it is durable.
  void complete(int64_t step);
  /// Removes, in the background, checkpoints that are not to be kept. One that a host cannot rename stays there, and a
  /// line on stderr says so once.
  void retire(int64_t keep_last, int64_t keep_every);

  /// Removes partial(step) from this rank's host. No collective, no exception.
  void remove(int64_t step) const;

 private:
  bool has_run() const;
  void check_owner(const std::string& resumed) const;
  void settle_host(int64_t step) const;
  std::vector<std::filesystem::path> retire_on_host(std::vector<int64_t>& steps);
  bool acts() const { return hosts_.is_first_of_host(world_.rank()); }
  bool has_rank_0() const { return hosts_.host_of(world_.rank()) == hosts_.host_of(0); }

  CheckpointFolder folder_;
  Group world_;
  HostMap hosts_;
  std::string run_;                 // as CheckpointFolder::claim() keeps it
  std::string attempt_;             // of this start of the run
  std::vector<int64_t> steps_;      // that rank 0 listed at the start
  std::vector<int64_t> abandoned_;  // likewise
  bool has_warned_ = false;
  bool is_claimed_ = false;
  std::future<void> removal_;
};

}  // namespace meshtrain

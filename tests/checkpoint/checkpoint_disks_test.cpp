// Checkpoints on hosts that share a disk or have one each. Half of the world's ranks simulate a second host.
#include "runtime/training/checkpoint/checkpoint_disks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "tests/support/faults/faults.h"
#include "tests/support/files.h"
#include "tests/support/hosts.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<int64_t>;

class CheckpointDisksTest : public ::testing::TestWithParam<bool> {
 protected:
  CheckpointDisksTest() : scratch_(world()), ranks_(world_on(Hosts::Two)), hosts_(HostMap::of(ranks_)) {}
  ~CheckpointDisksTest() override { inject_faults(""); }
  void SetUp() override {
    if (world().size() == 1 && own_disks()) GTEST_SKIP() << "one host";
  }

  static bool own_disks() { return GetParam(); }
  bool is_first_of_host() const { return hosts_.is_first_of_host(ranks_.rank()); }
  int host() const { return hosts_.host_of(ranks_.rank()); }
  CheckpointFolder folder_of(int host) const {
    return CheckpointFolder(scratch_.path() / ("disk" + std::to_string(own_disks() ? host : 0)) / "run/checkpoints");
  }
  CheckpointFolder folder() const { return folder_of(host()); }

  CheckpointDisks start(const fs::path& resumed = {}) const {
    const bool has_begun = fs::exists(folder().folder().parent_path() / "metrics.jsonl");
    return {folder(), ranks_, {.resumed = resumed, .has_begun = has_begun, .other_folder = "another --run-dir"}};
  }

  /// Writes a file of a checkpoint on every rank and a manifest on rank 0, and completes the checkpoint.
  void write(CheckpointDisks& disks, int64_t step) const {
    disks.begin(step);
    std::ofstream(disks.partial(step) / std::to_string(ranks_.rank())) << step;
    if (ranks_.rank() == 0) std::ofstream(disks.partial(step) / "manifest.json") << step;
    ranks_.barrier();
    disks.complete(step);
  }

  /// Returns the steps while no rank changes anything.
  Steps steps() const {
    ranks_.barrier();
    const Steps steps = folder().steps();
    ranks_.barrier();
    return steps;
  }
  void do_on_host(int host, const std::function<void()>& action) const {
    ranks_.barrier();
    if (this->host() == host && is_first_of_host()) action();
    ranks_.barrier();
  }
  /// Returns the message of the error that all ranks throw.
  template <class Error>
  std::string message(const std::function<void()>& action) const {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  ScratchFolder scratch_;
  Group ranks_;
  HostMap hosts_;
};

INSTANTIATE_TEST_SUITE_P(, CheckpointDisksTest, ::testing::Bool(),
                         [](const auto& disks) { return disks.param ? "own" : "shared"; });

TEST_P(CheckpointDisksTest, OldOnesGoOnEveryHost) {
  CheckpointDisks disks = start();
  for (const int64_t step : {10, 20, 30, 40}) {
    write(disks, step);
    disks.retire(/*keep_last=*/2, /*keep_every=*/20);
  }
  EXPECT_EQ(steps(), (Steps{20, 30, 40}));
  EXPECT_TRUE(fs::exists(folder().step(40) / std::to_string(ranks_.rank())));
}

// A host once removed its part of each new checkpoint because other folders sorted after it.
TEST_P(CheckpointDisksTest, RankZeroAloneDecidesWhatGoes) {
  CheckpointDisks disks = start();
  write(disks, 10);
  if (own_disks()) do_on_host(1, [&] { fs::create_directories(folder().step(900)); });
  for (const int64_t step : {20, 30}) {
    write(disks, step);
    disks.retire(1, 0);
    EXPECT_TRUE(fs::exists(folder().step(step) / std::to_string(ranks_.rank()))) << step;
    ranks_.barrier();
  }
  EXPECT_EQ(steps(), own_disks() && host() == 1 ? (Steps{30, 900}) : Steps{30});
}

TEST_P(CheckpointDisksTest, AnotherRunsFolderIsRefusedAndLeftAlone) {
  if (!own_disks()) return;
  for (const bool has_id : {true, false}) {
    do_on_host(1, [&] {
      fs::remove_all(folder().folder());
      if (has_id) folder().claim("0123456789abcdef");
      fs::create_directories(folder().step(7));
      fs::create_directories(folder().partial(8, "a"));
    });
    do_on_host(0, [&] { fs::remove_all(folder().folder()); });
    const auto before = contents(scratch_.path());
    ranks_.barrier();
    const std::string refusal = message<InputError>([&] { start(); });
    EXPECT_TRUE(has(refusal, folder_of(1).folder().string() + " holds checkpoints of another run (of ")) << refusal;
    EXPECT_TRUE(has(refusal, "rank " + std::to_string(hosts_.ranks_of(1).front())) && has(refusal, " on ")) << refusal;
    EXPECT_TRUE(has(refusal, ": move or remove that folder on that host, or choose another --run-dir")) << refusal;
    EXPECT_EQ(contents(scratch_.path()), before);
  }
}

TEST_P(CheckpointDisksTest, AnEmptyDiskMayJoin) {
  if (!own_disks()) return;
  {
    CheckpointDisks disks = start();
    write(disks, 10);
  }
  do_on_host(1, [&] { fs::remove_all(folder().folder().parent_path()); });
  CheckpointDisks disks = start(folder_of(0).step(10));
  disks.settle(10);
  write(disks, 20);
  EXPECT_EQ(steps(), host() == 0 ? (Steps{10, 20}) : Steps{20});
  EXPECT_EQ(folder().owners().size(), 1u);
}

TEST_P(CheckpointDisksTest, CheckpointsOfOlderVersionsHaveNoIdAndAreGoneOnFrom) {
  if (is_first_of_host()) {
    for (const int64_t step : {10, 20}) fs::create_directories(folder().step(step));
  }
  ranks_.barrier();
  EXPECT_TRUE(has(message<InputError>([&] { start(); }), "of a run without an id, but this is a new run"));
  CheckpointDisks disks = start(folder_of(0).step(10));
  disks.settle(10);
  write(disks, 30);
  EXPECT_EQ(steps(), (Steps{10, 30}));
  EXPECT_TRUE(fs::exists(folder().folder() / "abandoned-step-00000020"));
  EXPECT_EQ(folder().owners().size(), 1u);
}

TEST_P(CheckpointDisksTest, ACheckpointIsReplacedOnEveryHost) {
  {
    CheckpointDisks disks = start();
    write(disks, 10);
    if (is_first_of_host()) std::ofstream(folder().step(10) / "old") << 10;
    ranks_.barrier();
  }
  {
    CheckpointDisks disks = start(folder_of(0).step(10));
    disks.settle(10);
    EXPECT_EQ(steps(), Steps{10});
    write(disks, 10);
    EXPECT_FALSE(fs::exists(folder().step(10) / "old"));
    EXPECT_TRUE(fs::exists(folder().step(10) / std::to_string(ranks_.rank())));
  }
  ranks_.barrier();
  EXPECT_EQ(folder().abandoned(), Steps());
  ranks_.barrier();
}

// When one host cannot rename, the newest checkpoint that rank 0 lists exists on both hosts.
TEST_P(CheckpointDisksTest, ARenameThatFailsLeavesACheckpointOnEveryHost) {
  for (int failing = 0; failing < hosts_.num_hosts(); ++failing) {
    const int64_t last = failing == 0 ? 10 : 30, next = last + 10;
    CheckpointDisks disks = start(failing == 0 ? fs::path() : folder_of(0).step(20));
    write(disks, last);
    if (host() == failing) inject_faults("rename:step-000000" + std::to_string(next) + ".:EIO");
    EXPECT_TRUE(has(message<AgreedError>([&] { write(disks, next); }), "cannot rename ")) << failing;
    inject_faults("");
    disks.remove(next);
    ranks_.barrier();
    const bool is_complete = !own_disks() && failing == 0 && hosts_.num_hosts() > 1;  // the other host has renamed it
    const int64_t newest = folder_of(0).steps().back();
    EXPECT_EQ(newest, is_complete ? next : last);
    EXPECT_TRUE(fs::exists(folder().step(newest) / std::to_string(ranks_.rank())));

    ranks_.barrier();
    CheckpointDisks again = start(folder_of(0).step(newest));
    again.settle(newest);
    EXPECT_EQ(steps().back(), newest) << "a part of a checkpoint that is not complete is not kept";
    if (newest == last) write(again, next);
    EXPECT_EQ(steps().back(), next) << "nor in the way";
  }
}

TEST_P(CheckpointDisksTest, WhatRankZeroHasTakenAwayGoesOnTheOthers) {
  {
    CheckpointDisks disks = start();
    for (const int64_t step : {10, 20}) write(disks, step);
  }
  if (own_disks()) do_on_host(0, [&] { fs::remove_all(folder().step(10)); });
  start(folder_of(0).step(20)).settle(20);
  EXPECT_EQ(steps(), own_disks() ? Steps{20} : (Steps{10, 20}));
}

// One host has set the checkpoints aside, the other cannot. Nobody removes them as leftovers.
TEST_P(CheckpointDisksTest, WhatIsAbandonedIsNeverRemoved) {
  CheckpointDisks disks = start();
  for (const int64_t step : {10, 20}) write(disks, step);
  const int failing = hosts_.num_hosts() - 1;
  if (host() == failing) inject_faults("rename:abandoned-:EIO");
  const std::string said = message<AgreedError>([&] { start(folder_of(0).step(10)).settle(10); });
  inject_faults("");
  if (own_disks() || hosts_.num_hosts() == 1) {
    EXPECT_TRUE(has(said, "cannot rename ") && has(said, "/step-00000020 to abandoned-step-00000020: ")) << said;
  }
  ranks_.barrier();
  start(folder_of(0).step(10)).settle(10);
  EXPECT_EQ(steps(), Steps{10});
  EXPECT_TRUE(fs::exists(folder().folder() / "abandoned-step-00000020" / std::to_string(ranks_.rank())));
}

// Otherwise a host that goes first would lack checkpoints that rank 0's host still lists.
TEST_P(CheckpointDisksTest, RankZerosHostAbandonsFirst) {
  CheckpointDisks disks = start();
  for (const int64_t step : {10, 20}) write(disks, step);
  if (host() == 0) inject_faults("rename:abandoned-:EIO");
  EXPECT_TRUE(has(message<AgreedError>([&] { start(folder_of(0).step(10)).settle(10); }), "cannot rename "));
  inject_faults("");
  EXPECT_EQ(steps(), (Steps{10, 20}));
}

TEST_P(CheckpointDisksTest, AnOldOneThatCannotBeRenamedStaysWithAWarning) {
  CheckpointDisks disks = start();
  ::testing::internal::CaptureStderr();
  const int failing = hosts_.num_hosts() - 1;
  if (host() == failing) inject_faults("rename:step-00000010*.removed:EXDEV");
  for (const int64_t step : {10, 20, 30}) {
    write(disks, step);
    disks.retire(/*keep_last=*/1, /*keep_every=*/0);
  }
  inject_faults("");
  const bool stays = host() == failing && (own_disks() || failing == 0);
  EXPECT_EQ(steps(), stays ? (Steps{10, 30}) : Steps{30});
  const std::string said = ::testing::internal::GetCapturedStderr();
  if (!stays || !is_first_of_host()) return;
  EXPECT_TRUE(said.starts_with("meshtrain: warning: on ")) << said;
  EXPECT_TRUE(has(said, " cannot remove an old checkpoint: cannot rename " + folder().step(10).string() + " to "))
      << said;
  EXPECT_TRUE(has(said, ": Invalid cross-device link\n")) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_P(CheckpointDisksTest, AnIdWithoutARunIsThatOfAnother) {
  do_on_host(0, [&] {
    folder().claim("0123456789abcdef");
    fs::create_directory(folder().partial(8, "a"));
  });
  const auto before = contents(scratch_.path());
  ranks_.barrier();
  EXPECT_TRUE(has(message<InputError>([&] { start(); }), "of another run (of run 0123456789abcdef, but this is run "));
  EXPECT_EQ(contents(scratch_.path()), before);
  do_on_host(0, [&] { std::ofstream(folder().folder().parent_path() / "metrics.jsonl") << ""; });
  EXPECT_EQ(message<InputError>([&] { start(); }), "") << "a run that was ended before its first checkpoint";
}

TEST_P(CheckpointDisksTest, AFolderThatVanishedIsNotMadeAnew) {
  CheckpointDisks disks = start();
  write(disks, 10);
  do_on_host(0, [&] { fs::rename(folder().folder().parent_path(), scratch_.path() / "unmounted"); });
  const std::string said = message<AgreedError>([&] { write(disks, 20); });
  EXPECT_TRUE(has(said, "cannot make " + folder_of(0).folder().string()) && has(said, "No such file")) << said;
  EXPECT_FALSE(fs::exists(folder_of(0).folder()));
  do_on_host(0, [&] { fs::rename(scratch_.path() / "unmounted", folder().folder().parent_path()); });
}

TEST_P(CheckpointDisksTest, NoTwoStartsWriteInOneFolder) {
  EXPECT_NE(start().partial(10).filename(), start().partial(10).filename());
  const CheckpointDisks disks = start();
  EXPECT_EQ(broadcast_text(ranks_, disks.partial(10).filename().string()), disks.partial(10).filename().string());
}

}  // namespace
}  // namespace meshtrain::testing

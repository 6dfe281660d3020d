// The rank that all others wait for is found in made-up states of ranks.
#include "runtime/program/watch/stall.h"

#include <gtest/gtest.h>

#include <thread>

#include "mesh/device/aten.h"
#include "runtime/program/watch/stall_watch.h"
#include "tests/support/load.h"

namespace meshtrain {
namespace {

using Cause = Verdict::Cause;

int64_t milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
}

/// A group of these ranks.
GroupSight group(uint64_t key, const char* name) {
  GroupSight made;
  made.key = key;
  made.label.name = name;
  return made;
}

Flight flight(int64_t in_group, std::vector<int64_t> shape = {4}, Collective::Kind kind = Collective::Kind::AllReduce) {
  Flight made;
  made.number = made.in_group = in_group;
  made.kind = kind;
  made.dtype = at::kFloat;
  made.dims = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), made.shape.begin());
  made.purpose = "test";
  return made;
}

/// Ranks 0 to 3 on a mesh dp=2, tp=2: groups tp {0, 1} {2, 3}, dp {0, 2} {1, 3}, all of which have done 10 collectives.
class Stalls : public ::testing::Test {
 protected:
  Stalls() {
    for (int rank = 0; rank < 4; ++rank) {
      RankSight& sight = ranks.emplace_back();
      sight.rank = rank;
      sight.host = "a";
      sight.name = "rank " + std::to_string(rank);
      sight.phase = {"step 5, forward of block 1", PhaseKind::Step, 5};
      Activity& activity = sight.activity;
      activity.is_limited = true;
      activity.num_groups = 2;
      activity.groups[0] = group(rank < 2 ? 1 : 2, "tp");
      activity.groups[1] = group(rank % 2 == 0 ? 3 : 4, "dp");
      for (GroupSight& each : activity.groups) each.issued = each.ended = 10;
    }
  }

  /// Lets a rank wait in the next collective of its group for so long.
  void wait(int rank, size_t group, int64_t milliseconds, const Flight& pending = flight(11)) {
    Activity& activity = ranks[static_cast<size_t>(rank)].activity;
    GroupSight& sight = activity.groups[group];
    sight.issued = pending.in_group;
    sight.pending = pending;
    activity.waits = true;
    activity.awaited_group = sight.key;
    activity.awaited = pending.in_group;
    activity.still_ms = milliseconds;
  }

  std::string state_of_rank(size_t rank) const { return state_of(ranks[rank]); }

  void expect(Cause cause, const std::vector<int>& blamed, const std::string& words) const {
    const auto verdict = judge(ranks);
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->cause, cause) << verdict->text;
    EXPECT_EQ(verdict->ranks, blamed) << verdict->text;
    EXPECT_NE(verdict->text.find(words), std::string::npos) << verdict->text;
  }

  std::vector<RankSight> ranks;
};

TEST_F(Stalls, ARankWaitsComputesOrDidNotRun) {
  ranks[0].activity.still_ms = 1500;
  wait(1, 0, 12300);
  ranks[2].activity.halted_ms = 20'000;
  ranks[3].runs = false;
  EXPECT_EQ(state_of_rank(0), "computes, unchanged for 1.5 s");
  EXPECT_EQ(state_of_rank(1), "waits in number 11 of group tp, unchanged for 12.3 s");
  EXPECT_EQ(state_of_rank(2), "did not run for 20 s before this record") << "it has just begun to run again";
  EXPECT_EQ(state_of_rank(3), "has no record");
}

TEST_F(Stalls, NobodyWaits) {
  EXPECT_FALSE(judge(ranks));
  EXPECT_FALSE(judge({}));
}

TEST_F(Stalls, ARankHasNotCome) {
  wait(0, 0, 12000);
  expect(Cause::Absent, {1},
         "rank 1 on a holds up 1 rank, for 12 s in all_reduce of [4] Float for test, number 11 of "
         "group tp: it has not reached this collective; it was in step 5, forward of block 1");
}

TEST_F(Stalls, TheOneAtTheEndOfTheChainIsBlamed) {
  wait(0, 0, 12000);  // for 1, which waits for 3, which waits for 2
  wait(1, 1, 11000);
  wait(3, 0, 10000);
  expect(Cause::Absent, {2}, "rank 2 on a holds up 3 ranks, for 12 s");
  ranks[2].phase = {"the reading of step 6's samples", PhaseKind::Reading, 6};
  expect(Cause::Reading, {2}, "it reads data; it was in the reading of step 6's samples");
  ranks[2].phase = {"the checkpoint of step 5", PhaseKind::Saving, 5};
  expect(Cause::Saving, {2}, "it writes a checkpoint");
}

TEST_F(Stalls, AProcessIsStoppedOrFrozen) {
  wait(0, 0, 12000);
  ranks[1].activity.is_stopped = true;
  expect(Cause::Stopped, {1}, "its process is stopped, by a signal or a debugger");
  ranks[1].activity.is_stopped = false;
  ranks[1].runs = false;
  expect(Cause::Frozen, {1}, "its process does not run");
  ranks[1].has_record = false;
  expect(Cause::Frozen, {1}, "it has left no record: it was killed, or is stopped");
}

TEST_F(Stalls, AStoppedRankIsBlamedAlsoWhenItHasComeToTheCollective) {
  wait(0, 0, 12000);
  wait(1, 0, 12000);
  ranks[1].activity.is_stopped = true;
  expect(Cause::Stopped, {1}, "rank 1 on a holds up");
}

// So a record may say that was written when the job ended, which wakes a stopped process.
TEST_F(Stalls, ARankThatWasHaltedIsBlamedThoughItWentOn) {
  wait(0, 0, 12000);
  ranks[1].activity.groups[0].issued = ranks[1].activity.groups[0].ended = 12;
  ranks[1].activity.halted_ms = 12000;
  ranks[1].runs = false;
  expect(Cause::Frozen, {1}, "its process does not run");
}

// A rank that has sent what the others need ends its part before their messages come, which its process may still
// carry.
TEST_F(Stalls, ARankThatIsSeenThroughASilentOneIsNotBlamed) {
  for (RankSight& rank : ranks) rank.activity.groups[1].key = 3;  // of all four
  wait(0, 1, 12000);
  wait(1, 1, 12000);
  for (const size_t rank : {2, 3}) ranks[rank].runs = false;  // another host's
  expect(Cause::Frozen, {2, 3}, "rank 2 on a, and rank 3 likewise, hold up");
  ranks[3].speaker = 2;
  expect(Cause::Frozen, {2}, "rank 2 on a holds up 2 ranks");
  ranks[3].activity.is_stopped = true;  // as rank 2 has said before
  expect(Cause::Frozen, {2, 3}, "rank 2 on a, and rank 3 likewise, hold up");
}

TEST_F(Stalls, AStoppedRankIsBlamedThoughItHasEndedItsPart) {
  wait(0, 0, 12000);
  ranks[1].activity.groups[0].issued = ranks[1].activity.groups[0].ended = 11;
  expect(Cause::Transport, {}, "which all ranks of the group have reached");
  ranks[1].activity.is_stopped = true;
  expect(Cause::Stopped, {1}, "its process is stopped, by a signal or a debugger");
}

TEST_F(Stalls, CollectivesDiffer) {
  wait(0, 0, 12000);
  wait(1, 0, 11000, flight(11, {8}));
  expect(Cause::Different, {0, 1},
         "rank 0 on a all_reduce of [4] Float for test, in step 5, forward of block 1; rank 1 on a all_reduce of [8] "
         "Float for test");
  wait(1, 0, 11000, flight(11, {4}, Collective::Kind::Broadcast));
  expect(Cause::Different, {0, 1}, "rank 1 on a broadcast of [4]");
}

TEST_F(Stalls, OrdersDiffer) {
  ranks.pop_back();
  ranks.pop_back();
  for (RankSight& rank : ranks) rank.activity.groups[1].key = 3;  // a second group of both
  wait(0, 0, 12000);
  wait(1, 1, 11000);
  expect(Cause::Order, {0, 1}, "ranks issue collectives in different orders");
}

TEST_F(Stalls, AllHaveComeAndItDoesNotEnd) {
  wait(0, 0, 12000);
  wait(1, 0, 12000);
  expect(Cause::Transport, {}, "which all ranks of the group have reached");
}

/// Ranks 0 to 3 are the stages of a pipeline, and each has received 10 messages of its neighbours.
class PipelineStalls : public Stalls {
 protected:
  PipelineStalls() {
    for (int rank = 0; rank < 4; ++rank) {
      Activity& activity = ranks[static_cast<size_t>(rank)].activity;
      activity.num_groups = 0;
      for (const int other : {rank - 1, rank + 1}) {
        if (other < 0 || other > 3) continue;
        for (const auto& [from, to] : {std::pair{other, rank}, {rank, other}}) {
          GroupSight link = group(key(from, to), ("pp " + std::to_string(from) + ">" + std::to_string(to)).c_str());
          link.label.sender = from;
          link.label.receiver = to;
          link.issued = link.ended = 10;
          activity.groups[static_cast<size_t>(activity.num_groups++)] = link;
        }
      }
    }
  }

  static uint64_t key(int from, int to) { return static_cast<uint64_t>(10 * from + to + 1); }

  /// Lets the rank's next message on a link pend, for so long.
  void wait_for(int rank, int from, int to, int64_t milliseconds) {
    Activity& activity = ranks[static_cast<size_t>(rank)].activity;
    for (size_t i = 0; i < static_cast<size_t>(activity.num_groups); ++i) {
      if (activity.groups[i].key == key(from, to))
        wait(rank, i, milliseconds, flight(11, {4}, Collective::Kind::Message));
    }
  }
};

TEST_F(PipelineStalls, AStageAtTheEndOfAChainIsNamedWithBothEndsOfItsLink) {
  wait_for(0, 1, 0, 12000);  // gradients of the stage after
  wait_for(1, 2, 1, 11000);
  wait_for(2, 3, 2, 10000);
  ranks[3].phase.text = "step 5, micro-batch 2, backward of block 3";
  expect(Cause::Absent, {3},
         "rank 3 on a holds up 3 ranks, for 12 s in message of [4] Float for test, number 11 of link pp 3>2 from rank "
         "3 to rank 2: it has not reached this collective; it was in step 5, micro-batch 2, backward of block 3");
}

TEST_F(PipelineStalls, AStoppedStageInTheMiddleIsNamedFromBothSides) {
  wait_for(0, 1, 0, 12000);
  wait_for(3, 2, 3, 11000);  // activations of the stage before
  wait_for(2, 1, 2, 10000);
  ranks[1].activity.is_stopped = true;
  expect(Cause::Stopped, {1}, "number 11 of link pp 1>0 from rank 1 to rank 0: its process is stopped");
  ranks[0].activity.waits = false;
  expect(Cause::Stopped, {1}, "number 11 of link pp 1>2 from rank 1 to rank 2: its process is stopped");
}

// The hosts of GPUs issue what their devices wait for, so everybody has come to the first message of the chain.
TEST_F(PipelineStalls, DevicesThatWaitInAChainDoNotHideTheStoppedOne) {
  wait_for(1, 1, 0, 12000);  // issued, behind the message that its device waits for
  wait_for(1, 2, 1, 11000);
  wait_for(2, 2, 1, 10000);
  wait_for(2, 3, 2, 10000);
  wait_for(0, 1, 0, 12000);
  ranks[3].activity.is_stopped = true;
  expect(Cause::Stopped, {3}, "number 11 of link pp 3>2 from rank 3 to rank 2: its process is stopped");
}

TEST_F(PipelineStalls, StagesThatWaitForEachOtherAreNamedWithTheirLinks) {
  wait_for(1, 2, 1, 12000);
  wait_for(2, 1, 2, 11000);
  expect(Cause::Order, {1, 2}, "rank 1 on a in message of [4] Float for test, number 11 of link pp 2>1 from rank 2 to");
  expect(Cause::Order, {1, 2}, "rank 2 on a in message of [4] Float for test, number 11 of link pp 1>2 from rank 1 to");
}

TEST_F(Stalls, AreToldOnceAndEndTheRun) {
  StallWatch watch;
  StallLimits limits{.warning = std::chrono::seconds(10), .timeout = std::chrono::seconds(60)};
  EXPECT_TRUE(watch.look(ranks, limits).lines.empty());
  wait(0, 0, 9000);
  EXPECT_TRUE(watch.look(ranks, limits).lines.empty()) << "not yet";
  wait(0, 0, 10500);
  EXPECT_EQ(watch.look(ranks, limits).lines.size(), 1);
  wait(0, 0, 20500);
  EXPECT_TRUE(watch.look(ranks, limits).lines.empty()) << "said already";
  ranks[0].activity.still_ms = 100;
  const std::vector<std::string> lines = watch.look(ranks, limits).lines;
  ASSERT_EQ(lines.size(), 1);
  EXPECT_TRUE(lines[0].starts_with("the ranks continue")) << lines[0];
  wait(0, 0, 61000);
  const StallWatch::Decision end = watch.look(ranks, limits);
  EXPECT_NE(end.end.find("rank 1 on a holds up"), std::string::npos) << end.end;
  EXPECT_NE(end.end.find("parallel.timeout, 60 s"), std::string::npos) << end.end;
}

// A rank of another host shows itself every second; when it is stopped, its last word is older.
TEST_F(Stalls, ARankThatIsSilentIsNotJudgedByItsLastWord) {
  StallWatch watch;
  const StallLimits limits{.warning = std::chrono::seconds(2), .timeout = std::chrono::seconds(60)};
  wait(0, 0, 2500);
  ranks[1].silent_ms = 2500;
  EXPECT_TRUE(watch.look(ranks, limits).lines.empty());
  ranks[1].silent_ms = 5500;
  ranks[1].runs = false;
  const std::vector<std::string> lines = watch.look(ranks, limits).lines;
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("its process does not run"), std::string::npos) << lines[0];
}

TEST_F(Stalls, ADiskIsWaitedForAndAStoppedWriterIsNot) {
  StallWatch watch;
  const StallLimits limits{.warning = std::chrono::seconds(10), .timeout = std::chrono::seconds(60)};
  wait(0, 0, 90000);
  ranks[1].phase = {"the checkpoint of step 5", PhaseKind::Saving, 5};
  EXPECT_EQ(watch.look(ranks, limits).end, "");
  ranks[1].activity.is_stopped = true;
  EXPECT_NE(watch.look(ranks, limits).end, "");
}

TEST_F(Stalls, RanksWhoseStepsAreLongAreNotWarned) {
  StallWatch watch;
  const StallLimits limits{.warning = std::chrono::seconds(10), .timeout = std::chrono::seconds(200)};
  ranks[2].activity.usual_ms = 20000;
  wait(0, 0, 59000);
  EXPECT_TRUE(watch.look(ranks, limits).lines.empty());
  wait(0, 0, 61000);
  EXPECT_EQ(watch.look(ranks, limits).lines.size(), 1u);
}

TEST_F(Stalls, LongStallsDoNotRaiseTheLimitBeyondTheTimeout) {
  const StallLimits limits{.warning = std::chrono::seconds(10), .timeout = std::chrono::seconds(600)};
  ranks[2].activity.usual_ms = 180000;
  StallWatch watch;
  wait(0, 0, 299000);
  EXPECT_TRUE(watch.look(ranks, limits).lines.empty());
  wait(0, 0, 301000);
  EXPECT_EQ(watch.look(ranks, limits).lines.size(), 1u);
  wait(0, 0, 601000);
  EXPECT_NE(watch.look(ranks, limits).end, "");
}

// Where the timeout is below what steps take, which stillnesses of the run itself have shown.
TEST_F(Stalls, StepsThatAreLongerThanTheTimeoutAreWaitedFor) {
  const StallLimits limits{.warning = std::chrono::seconds(10), .timeout = std::chrono::seconds(20)};
  ranks[2].activity.usual_ms = 20000;
  StallWatch watch;
  wait(0, 0, 29000);
  const StallWatch::Decision decision = watch.look(ranks, limits);
  EXPECT_TRUE(decision.lines.empty());
  EXPECT_EQ(decision.end, "");
  wait(0, 0, 31000);
  EXPECT_NE(watch.look(ranks, limits).end, "");
}

// Several collectives of a group may be under way, and a rank need not wait for the first of them.
TEST_F(Stalls, TheCollectiveThatIsAwaitedIsNamedAfterAnother) {
  wait(0, 0, 11000, flight(11, {8}));
  Activity& waiting = ranks[0].activity;
  waiting.groups[0].issued = 12;
  waiting.awaited = 12;
  waiting.awaited_flight = flight(12, {6, 6});
  ranks[1].activity.is_stopped = true;
  const auto verdict = judge(ranks);
  ASSERT_TRUE(verdict);
  EXPECT_NE(verdict->text.find(" in all_reduce of [6, 6] Float for test, number 12 of group tp: "), std::string::npos)
      << verdict->text;
}

// After two stalls a run has long stillnesses of its own: a process that does not run is named all the same.
TEST_F(Stalls, AStoppedProcessIsNamedWhereStepsAreLong) {
  const StallLimits limits{.warning = std::chrono::seconds(10), .timeout = std::chrono::seconds(600)};
  ranks[2].activity.usual_ms = 20000;
  ranks[1].activity.is_stopped = true;
  StallWatch watch;
  wait(0, 0, 11000);
  EXPECT_TRUE(watch.look(ranks, limits).lines.empty()) << "it is stopped for a moment";
  ranks[1].runs = false;
  ranks[1].silent_ms = 3000;
  EXPECT_TRUE(watch.look(ranks, limits).lines.empty()) << "it has run until 3 s ago";
  wait(0, 0, 9000);
  ranks[1].silent_ms = 9000;
  EXPECT_TRUE(watch.look(ranks, limits).lines.empty());
  wait(0, 0, 11000);
  ranks[1].silent_ms = 11000;
  const std::vector<std::string> lines = watch.look(ranks, limits).lines;
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("rank 1"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("its process is stopped"), std::string::npos) << lines[0];
  EXPECT_TRUE(watch.look(ranks, limits).lines.empty()) << "once";
}

TEST_F(Stalls, AStopThatIsAskedForEndsRanksThatStandStill) {
  StallWatch watch;
  const StallLimits limits{.warning = std::chrono::duration<double>(0.05),
                           .timeout = std::chrono::seconds(60),
                           .last_checkpoint = "that of step 4"};
  wait(0, 0, 1000);
  ranks[3].activity.is_stop_asked = true;
  EXPECT_EQ(watch.look(ranks, limits).end, "") << "there is a moment of grace";
  std::string end;
  testing::wait_until([&] { return !(end = watch.look(ranks, limits).end).empty(); });
  EXPECT_TRUE(
      end.starts_with("a stop was requested, but no checkpoint can be written (the last is that of step 4): "
                      "rank 1 on a holds up"))
      << end;
}

TEST(Stillness, OfAProcessThatDidNotRunIsNotItsOwn) {
  Stillness stillness;
  Activity activity;
  const auto start = std::chrono::steady_clock::now();
  stillness.note(1, "a", true, activity);
  EXPECT_EQ(activity.halted_ms, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  stillness.note_halt(std::chrono::milliseconds(50));
  stillness.note(1, "a", true, activity);
  EXPECT_LE(activity.still_ms, milliseconds_since(start) - 50);
  EXPECT_EQ(activity.halted_ms, 50);
}

TEST(Stillness, IsSinceTheLastRecordOrPhase) {
  Stillness stillness;
  Activity activity;
  const auto still = [&](int64_t records, const char* phase, bool limited = true) {
    stillness.note(records, phase, limited, activity);
    return activity.still_ms;
  };
  still(1, "a");
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_GE(still(1, "a"), 30);
  EXPECT_EQ(still(2, "a"), 0);
  EXPECT_EQ(activity.usual_ms, 0) << "once is not usual";
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(still(2, "a"), 20);
  EXPECT_EQ(still(2, "b"), 0);
  EXPECT_GE(activity.usual_ms, 20);
}

}  // namespace
}  // namespace meshtrain

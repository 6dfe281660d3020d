// Tables of pipeline schedules: all kinds and sizes are complete and end, and their bubbles and peaks are the
// formulas'.
#include "pipeline_parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "pipeline_parallel/check_schedule.h"
#include "pipeline_parallel/place_messages.h"
#include "pipeline_parallel/simulate_schedule.h"

namespace meshtrain {
namespace {

using Kind = PipelineAction::Kind;

/// Calls `check` with each schedule of up to 16 ranks, 4 stages a rank and 64 micro-batches.
template <class Check>
void for_every_schedule(const Check& check) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (int micro_batches = 1; micro_batches <= 64; micro_batches += micro_batches < 20 ? 1 : 11) {
      check(ScheduleKind::OneForwardOneBackward, ranks, 1, micro_batches);
      check(ScheduleKind::ZeroBubble, ranks, 1, micro_batches);
    }
    for (int rounds = 1; rounds * ranks <= 64; rounds += rounds < 5 ? 1 : 7) {
      for (int stages = 1; stages <= 4; ++stages) check(ScheduleKind::Interleaved, ranks, stages, rounds * ranks);
    }
  }
}

SimulatedSchedule simulated(const PipelineSchedule& schedule) {
  return simulate_schedule(schedule, std::vector<StageSeconds>(static_cast<size_t>(schedule.stages)));
}

// make_schedule() checks each. Forward, input gradient and weight gradients of a stage take a second each.
TEST(PipelineSchedule, EveryTableEndsWithTheBubbleAndThePeakOfTheFormulas) {
  for_every_schedule([](ScheduleKind kind, int ranks, int stages, int micro_batches) {
    const SimulatedSchedule run = simulated(make_schedule(kind, ranks, stages, micro_batches));
    const std::string at = std::to_string(ranks) + " ranks, " + std::to_string(stages) + " stages, " +
                           std::to_string(micro_batches) + " micro-batches";
    const double computing = 3.0 * stages * micro_batches;
    const double waiting = kind == ScheduleKind::ZeroBubble ? ranks - 1 : 3.0 * (ranks - 1);
    if (kind != ScheduleKind::ZeroBubble || micro_batches >= ranks) {
      EXPECT_DOUBLE_EQ(run.seconds, computing + waiting) << at;
      EXPECT_NEAR(run.bubble(), waiting / (computing + waiting), 1e-12) << at;
    }
    for (int rank = 0; rank < ranks; ++rank) {
      int peak = 0;
      switch (kind) {
        case ScheduleKind::OneForwardOneBackward:
          peak = ranks - rank;
          break;
        case ScheduleKind::Interleaved:
          peak = (stages - 1) * ranks + 2 * (ranks - 1 - rank) + 1;
          break;
        case ScheduleKind::ZeroBubble:
          peak = ranks;
          break;
      }
      EXPECT_EQ(run.peak[static_cast<size_t>(rank)], std::min(peak, stages * micro_batches)) << at << ", rank " << rank;
    }
  });
}

TEST(PipelineSchedule, OneRankRunsEachMicroBatchForwardAndBack) {
  const PipelineSchedule schedule = make_schedule(ScheduleKind::OneForwardOneBackward, 1, 2, 2);
  const std::vector<PipelineAction> row = {{Kind::Forward, 0, 0},  {Kind::Forward, 1, 0}, {Kind::Backward, 1, 0},
                                           {Kind::Backward, 0, 0}, {Kind::Forward, 0, 1}, {Kind::Forward, 1, 1},
                                           {Kind::Backward, 1, 1}, {Kind::Backward, 0, 1}};
  EXPECT_EQ(schedule.rows.front(), row);
}

TEST(PipelineSchedule, AMessageTakesItsTimeOnTheWay) {
  const PipelineSchedule schedule = make_schedule(ScheduleKind::OneForwardOneBackward, 2, 1, 1);
  EXPECT_DOUBLE_EQ(simulate_schedule(schedule, {{1, 1, 1}, {2, 3, 4}}, 5).seconds, 22) << "1, 5, 2, 7, 5, 2";
}

std::string complaint_of(const PipelineSchedule& schedule) {
  try {
    check_schedule(schedule);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

// Each message beside its action, as one would write it down: both ranks send first.
TEST(PipelineSchedule, TheNaturalOrderOfMessagesDeadlocks) {
  PipelineSchedule schedule = make_schedule(ScheduleKind::OneForwardOneBackward, 2, 1, 2);
  schedule.rows = {{{Kind::Forward, 0, 0},
                    {Kind::SendActivation, 0, 0},
                    {Kind::Forward, 0, 1},
                    {Kind::SendActivation, 0, 1},
                    {Kind::ReceiveGradient, 0, 0},
                    {Kind::Backward, 0, 0},
                    {Kind::ReceiveGradient, 0, 1},
                    {Kind::Backward, 0, 1}},
                   {{Kind::ReceiveActivation, 1, 0},
                    {Kind::Forward, 1, 0},
                    {Kind::Backward, 1, 0},
                    {Kind::SendGradient, 1, 0},
                    {Kind::ReceiveActivation, 1, 1},
                    {Kind::Forward, 1, 1},
                    {Kind::Backward, 1, 1},
                    {Kind::SendGradient, 1, 1}}};
  EXPECT_EQ(complaint_of(schedule),
            "schedule of pipeline rank 0: it waits forever at the sending of micro-batch 1's activation by stage 0");
}

TEST(PipelineSchedule, WhatIsWrongInATableIsNamed) {
  const PipelineSchedule right = make_schedule(ScheduleKind::ZeroBubble, 2, 1, 4);
  const auto without = [&](int rank, const PipelineAction& action) {
    PipelineSchedule schedule = right;
    auto& row = schedule.rows[static_cast<size_t>(rank)];
    EXPECT_EQ(std::erase(row, action), 1U);
    return complaint_of(schedule);
  };
  const auto moved = [&](int rank, const PipelineAction& action, bool to_begin) {
    PipelineSchedule schedule = right;
    auto& row = schedule.rows[static_cast<size_t>(rank)];
    EXPECT_EQ(std::erase(row, action), 1U);
    row.insert(to_begin ? row.begin() : row.end(), action);
    return complaint_of(schedule);
  };
  const std::string first = "schedule of pipeline rank 0: ", second = "schedule of pipeline rank 1: ";
  EXPECT_EQ(without(0, {Kind::Forward, 0, 3}),
            first +
                "the sending of micro-batch 3's activation by stage 0 comes before the forward of micro-batch 3 in "
                "stage 0");
  EXPECT_EQ(without(1, {Kind::WeightGradient, 1, 3}),
            second + "it lacks the weight gradients of micro-batch 3 in stage 1");
  EXPECT_EQ(without(1, {Kind::ReceiveActivation, 1, 0}),
            second + "the receiving of micro-batch 1's activation by stage 1 comes before that of micro-batch 0");
  EXPECT_EQ(without(0, {Kind::SendActivation, 0, 3}),
            first + "its messages to rank 1 do not match those that it expects");
  EXPECT_EQ(without(1, {Kind::SendGradient, 1, 3}),
            second + "its messages to rank 0 do not match those that it expects");
  EXPECT_EQ(moved(0, {Kind::WeightGradient, 0, 0}, true),
            first +
                "the weight gradients of micro-batch 0 in stage 0 comes before the input gradient of micro-batch 0 in "
                "stage 0");
  PipelineSchedule twice = right;
  twice.rows[1].push_back({Kind::Forward, 1, 0});
  EXPECT_EQ(complaint_of(twice), second + "it has the forward of micro-batch 0 in stage 1 twice");
  twice.rows[1].back() = {Kind::Forward, 0, 0};
  EXPECT_EQ(complaint_of(twice),
            second + "it has the forward of micro-batch 0 in stage 0, which belongs to another rank");
}

TEST(PipelineSchedule, ImpossibleNumbersAreRefused) {
  const auto complaint = [](ScheduleKind kind, int ranks, int stages, int micro_batches) -> std::string {
    try {
      make_schedule(kind, ranks, stages, micro_batches);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(complaint(ScheduleKind::Interleaved, 4, 2, 6),
            "pipeline schedule: an interleaved schedule runs micro-batches in rounds of one per rank, but 6 is not a "
            "multiple of 4 ranks");
  EXPECT_EQ(complaint(ScheduleKind::ZeroBubble, 4, 2, 8),
            "pipeline schedule: 2 stages on each of 4 ranks need an interleaved schedule");
  EXPECT_EQ(complaint(ScheduleKind::OneForwardOneBackward, 4, 1, 0),
            "pipeline schedule: 4 ranks, 1 stage a rank and 0 micro-batches: each must be 1 or more");
}

}  // namespace
}  // namespace meshtrain

// Messages from one rank to another: values, order, queues, bytes, and the order in which pipelines deadlock.
#include "mesh/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "mesh/backends/dry_run.h"
#include "mesh/backends/nccl/calls.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "mesh/flight_recorder.h"
#include "mesh/instrumented.h"
#include "mesh/staged.h"
#include "tests/mesh/worlds.h"
#include "tests/support/messages.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;
using testing::world;

/// A pipeline over all ranks: links between neighbours, in both directions.
class Links : public ::testing::Test {
 protected:
  explicit Links(const Group& group = world()) : rank_(group.rank()), size_(group.size()) {
    for (int rank = 0; rank + 1 < size_; ++rank) {
      down_.emplace_back(group, rank, rank + 1);
      up_.emplace_back(group, rank + 1, rank);
    }
  }

  static at::Tensor of(int64_t value, at::IntArrayRef shape) {
    return at::full(shape, static_cast<double>(value), at::kFloat);
  }

  /// Sends tensors of each dtype and of several sizes down the pipeline, which each rank expects from the one before.
  void expect_messages() {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kByte}) {
      for (const int64_t rows : {0, 1, 7, 700}) {
        std::vector<Work> works;
        at::Tensor received = at::zeros({rows, 33}, dtype);
        const at::Tensor sent = at::full({rows, 33}, rank_ + rows % 5, dtype);
        if (rank_ > 0) works.push_back(down_[static_cast<size_t>(rank_ - 1)].receive(received));
        if (rank_ + 1 < size_) works.push_back(down_[static_cast<size_t>(rank_)].send(sent));
        for (const Work& work : works) work.wait();
        EXPECT_TRUE(at::equal(sent, at::full({rows, 33}, rank_ + rows % 5, dtype)));
        const int64_t expected = rank_ > 0 ? rank_ - 1 + rows % 5 : 0;
        EXPECT_TRUE(at::equal(received, at::full({rows, 33}, expected, dtype)));
      }
    }
  }

  const int rank_, size_;
  std::vector<Link> down_, up_;  // by the lower rank
};

TEST_F(Links, HaveEndsOnTwoRanks) {
  for (int rank = 0; rank + 1 < size_; ++rank) {
    EXPECT_EQ(down_[static_cast<size_t>(rank)].is_sender(), rank == rank_);
    EXPECT_EQ(down_[static_cast<size_t>(rank)].is_receiver(), rank + 1 == rank_);
    EXPECT_EQ(up_[static_cast<size_t>(rank)].is_sender(), rank + 1 == rank_);
  }
}

TEST_F(Links, CarryTensorsOfAnyDtypeAndSize) {
  expect_messages();
}

class LinksInPieces : public Links {
 protected:
  LinksInPieces() : Links(testing::world_in_pieces(64)) {}
};
TEST_F(LinksInPieces, CarryThemToo) {
  expect_messages();
}

class StagedLinks : public Links {
 protected:
  StagedLinks()
      : Links(Group(staged(world().backend(), StagedTensors::All), "staged", world().ranks(),
                    world().coordinate_text())) {}
};
TEST_F(StagedLinks, CarryThemToo) {
  expect_messages();
}

TEST_F(Links, KeepTheOrderOfTheirMessages) {
  if (size_ == 1) GTEST_SKIP() << "one rank has no link";
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int64_t i = 0; i < 20; ++i) {
    tensors.push_back(rank_ == 0 ? of(i, {1 + i % 3 * 500, 4}) : at::zeros({1 + i % 3 * 500, 4}));
    if (rank_ == 0) works.push_back(down_[0].send(tensors.back()));
    if (rank_ == 1) works.push_back(down_[0].receive(tensors.back()));
  }
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  if (rank_ > 1) return;
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(at::equal(tensors[static_cast<size_t>(i)], of(i, {1 + i % 3 * 500, 4})));
  }
}

/// 1F1B with every message in its natural position. Through one queue for both directions this deadlocks: a rank's next
/// activation stands before the gradient that its neighbour cannot send until it has received that activation.
TEST_F(Links, OneForwardOneBackwardInTheNaturalOrderEnds) {
  const testing::Watchdog watchdog(100);
  constexpr int64_t kMicroBatches = 9;
  constexpr int64_t kRows = 4 << 10;  // 512 KiB a message: far more than MPI sends before the receiver has asked
  const int64_t warm_up = std::min<int64_t>(size_ - rank_ - 1, kMicroBatches);
  std::vector<Work> sent;
  std::vector<at::Tensor> kept;
  int64_t backwards = 0;
  const auto forward = [&](int64_t micro_batch) {
    at::Tensor x = of(rank_ == 0 ? micro_batch : -1, {kRows, 32});
    if (rank_ > 0) down_[static_cast<size_t>(rank_ - 1)].receive(x).wait();
    EXPECT_TRUE(at::equal(x, of(micro_batch + rank_, {kRows, 32}))) << micro_batch;
    kept.push_back(x + 1);
    if (rank_ + 1 < size_) sent.push_back(down_[static_cast<size_t>(rank_)].send(kept.back()));
  };
  const auto backward = [&] {
    at::Tensor dy = of(rank_ + 1 < size_ ? -1 : backwards, {kRows, 32});
    if (rank_ + 1 < size_) up_[static_cast<size_t>(rank_)].receive(dy).wait();
    EXPECT_TRUE(at::equal(dy, of(backwards, {kRows, 32}))) << backwards;
    kept.push_back(dy);
    if (rank_ > 0) sent.push_back(up_[static_cast<size_t>(rank_ - 1)].send(dy));
    ++backwards;
  };
  for (int64_t i = 0; i < warm_up; ++i) forward(i);
  for (int64_t i = warm_up; i < kMicroBatches; ++i) forward(i), backward();
  while (backwards < kMicroBatches) backward();
  for (const Work& work : sent) work.wait();
}

TEST_F(Links, AMessageWaitsForNoCollectiveOfTheGroup) {
  if (size_ == 1) GTEST_SKIP() << "one rank has no link";
  const testing::Watchdog watchdog(100);
  at::Tensor sum = at::ones({1 << 20}), tensor = at::full({1 << 18}, rank_, at::kFloat);
  Work collective;
  if (rank_ != 0) collective = world().all_reduce(sum);
  if (rank_ == 0) down_[0].send(tensor).wait();
  if (rank_ == 1) down_[0].receive(tensor).wait();
  if (rank_ == 0) collective = world().all_reduce(sum);
  collective.wait();
  EXPECT_TRUE(at::equal(sum, at::full({1 << 20}, size_, at::kFloat)));
  EXPECT_TRUE(at::equal(tensor, at::full({1 << 18}, rank_ <= 1 ? 0 : rank_, at::kFloat)));
}

TEST_F(Links, ShareNoMemoryOfTheHost) {
  if (size_ == 1) GTEST_SKIP() << "one rank has no link";
  const int64_t before = WindowMemory::counted().exchange();
  const Link link(world(), 0, size_ - 1);
  EXPECT_EQ(WindowMemory::counted().exchange(), before);
}

TEST(Link, IsRefusedBetweenTheWrongRanks) {
  const Group four(dry_run_backend(1, 4), "pp", {0, 2, 4, 6}, "rank 2 (pp=1 tp=0)");
  const auto refused = [&](int from, int to) {
    return message<RankError<std::invalid_argument>>([&] { Link(four, from, to); });
  };
  EXPECT_EQ(refused(1, 1), "rank 2 (pp=1 tp=0): link pp 1>1: expected two ranks of group pp, which has 4");
  EXPECT_EQ(refused(0, 4), "rank 2 (pp=1 tp=0): link pp 0>4: expected two ranks of group pp, which has 4");
  EXPECT_TRUE(has(refused(-1, 1), "link pp -1>1"));
}

TEST(Link, RefusesACallOfTheOtherEnd) {
  const Group four(dry_run_backend(1, 4), "pp", {0, 2, 4, 6}, "rank 2 (pp=1 tp=0)");
  at::Tensor tensor = at::zeros({2});
  const Link away(four, 1, 2), here(four, 0, 1), elsewhere(four, 2, 3);
  EXPECT_EQ(message<RankError<std::invalid_argument>>([&] { away.receive(tensor); }),
            "rank 2 (pp=1 tp=0): receive on link pp 1>2: this rank is its sender");
  EXPECT_EQ(message<RankError<std::invalid_argument>>([&] { here.send(tensor); }),
            "rank 2 (pp=1 tp=0): send on link pp 0>1: this rank is its receiver");
  EXPECT_TRUE(has(message<RankError<std::invalid_argument>>([&] { elsewhere.send(tensor); }),
                  "this rank is neither of its ends"));
  at::Tensor strided = at::zeros({4, 4}).t();
  EXPECT_TRUE(has(message<std::invalid_argument>([&] { away.with_purpose("pp.output").send(strided); }),
                  "message on group pp 1>2 (2 ranks), purpose pp.output, output [4, 4] Float cpu: tensors must be "
                  "contiguous"));
  EXPECT_TRUE(has(message<std::invalid_argument>([&] { four.message(tensor, 0, 1); }),
                  "a message goes from one rank of a group of two to the other, not from 0 to 1"));
}

TEST(Link, SendsBytesOnOneRankAlone) {
  const auto ledger = std::make_shared<TrafficLedger>();
  const Group group(instrument(dry_run_backend(1, 4), ledger), "pp", {0, 1, 2, 3}, "rank 1");
  at::Tensor tensor = at::empty({8, 6}, at::TensorOptions(at::kBFloat16).device(at::kMeta));
  const Link here(group, 0, 1), away(group, 1, 2);
  here.receive(tensor).wait();
  away.with_purpose("pp.output").send(tensor).wait();
  const Traffic& received = ledger->entries().at({"pp 0>1", "other", Collective::Kind::Message});
  const Traffic& sent = ledger->entries().at({"pp 1>2", "pp.output", Collective::Kind::Message});
  EXPECT_EQ(received.buffer_bytes, 96);
  EXPECT_EQ(received.sent_bytes, 0);
  EXPECT_EQ(sent.buffer_bytes, 96);
  EXPECT_EQ(sent.sent_bytes, 96);
}

TEST(Link, OfADryRunNeedsNoBoard) {
  WindowMemory windows;
  const Group group(dry_run_backend(0, 2, {.ranks_per_host = 2, .windows = &windows}), "pp", {0, 1}, "rank 0");
  const int64_t before = windows.exchange();
  const Link link(group, 0, 1);
  EXPECT_EQ(windows.exchange(), before);
  const Group pair = group.split({0, 1}, "pair");
  EXPECT_GT(windows.exchange(), before);
}

TEST(Link, IsASendAndAReceiveOfNccl) {
  const auto calls = [](int rank, int64_t numel) {
    const at::Tensor tensor = at::empty({numel}, at::TensorOptions(at::kMeta).dtype(at::kFloat));
    return nccl_calls({.kind = Collective::Kind::Message, .output = tensor, .input = {}, .from = 0, .to = 1}, rank, 2);
  };
  using Expected = std::vector<NcclCall>;
  EXPECT_EQ(calls(0, 6), (Expected{{NcclCall::Kind::Send, 1, 0, 0, 6}}));
  EXPECT_EQ(calls(1, 6), (Expected{{NcclCall::Kind::Receive, 0, 0, 0, 6}}));
  EXPECT_EQ(calls(1, 0), Expected{});
}

TEST_F(Links, AreSeenByTheFlightRecorder) {
  if (size_ == 1) GTEST_SKIP() << "one rank has no link";
  FlightRecorder recorder;
  std::vector<int> everyone;
  for (int rank = 0; rank < size_; ++rank) everyone.push_back(rank);
  const Group recorded(record_flights(world().backend(), recorder, {"world"}, everyone), "world", world().ranks(),
                       world().coordinate_text());
  const Link link(recorded, 0, size_ - 1);
  at::Tensor tensor = at::ones({8});
  if (link.is_sender()) link.with_purpose("pp.output").send(tensor).wait();
  if (link.is_receiver()) link.with_purpose("pp.output").receive(tensor).wait();
  if (!link.is_sender() && !link.is_receiver()) return;
  const Flight flight = recorder.flights().back();
  EXPECT_EQ(describe(flight), "message of [8] Float for pp.output");
  EXPECT_NE(flight.ended, Flight::Clock::time_point{});
  EXPECT_TRUE(fit(flight, flight));
  const GroupFlights of_link = recorder.groups()[static_cast<size_t>(flight.group)];
  const std::string last = std::to_string(size_ - 1);
  EXPECT_EQ(describe(label_of(of_link)), "link world 0>" + last + " from rank 0 to rank " + last);
  EXPECT_EQ(recorder.costs().at("world").sent_bytes, link.is_sender() ? 32 : 0) << "not under the link's own name";
}

}  // namespace
}  // namespace meshtrain

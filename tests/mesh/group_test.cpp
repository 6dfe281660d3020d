#include "mesh/group.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <stdexcept>

#include "mesh/backends/dry_run.h"
#include "mesh/backends/mpi/mpi.h"
#include "mesh/device/aten.h"
#include "tests/mesh/worlds.h"
#include "tests/support/messages.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;
using testing::world;

void expect_refused(const std::function<void()>& action, const std::string& problem) {
  const std::string found = message<std::invalid_argument>(action);
  EXPECT_TRUE(has(found, problem)) << "\"" << found << "\" instead of: " << problem;
}

/// Returns rank 1 of a group of four that does not exist: arguments are checked before anything is sent.
Group four() {
  return Group(dry_run_backend(1, 4), "tp", {0, 2, 4, 6}, "rank 2 (dp=0 tp=1)");
}

TEST(Group, OfThisProcessAloneCopiesOrDoesNothing) {
  const Group alone;
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.ranks(), (std::vector<int64_t>{0}));
  at::Tensor tensor = at::arange(6, at::kDouble);
  const at::Tensor before = tensor.clone();
  alone.all_reduce(tensor).wait();
  alone.broadcast(tensor, 0).wait();
  alone.barrier();
  EXPECT_TRUE(at::equal(tensor, before));
  for (int i = 0; i < 4; ++i) {
    at::Tensor copy = at::zeros({6}, at::kDouble);
    if (i == 0) alone.all_gather(copy, tensor).wait();
    if (i == 1) alone.reduce_scatter(copy, tensor).wait();
    if (i == 2) alone.all_to_all(copy, tensor).wait();
    if (i == 3) alone.exchange(copy, 0, tensor, 0).wait();
    EXPECT_TRUE(at::equal(copy, before)) << i;
  }
  at::Tensor same = tensor.narrow(0, 0, 6);
  alone.all_gather(tensor, same).wait();
  alone.reduce_scatter(same, tensor).wait();
  EXPECT_TRUE(at::equal(tensor, before));
}

TEST(Group, PurposeIsOfACopy) {
  const Group group = four();
  const Group linear = group.with_purpose("tp.linear");
  at::Tensor strided = at::zeros({4, 4}).t();
  expect_refused([&] { linear.all_reduce(strided); }, "purpose tp.linear");
  expect_refused([&] { group.all_reduce(strided); }, "purpose other");
}

TEST(Group, HasOneQueueOnTheHost) {
  const Group purposed = world().with_purpose("dp.parameters"), second = purposed.second_queue();
  EXPECT_EQ(second.backend(), world().backend());
  EXPECT_EQ(second.ranks(), world().ranks());
}

TEST(Group, MessagesSayWhoWhereWhatAndHow) {
  at::Tensor output = at::zeros({8, 3}, at::kFloat);
  const at::Tensor shard = at::zeros({3, 3}, at::kFloat);
  EXPECT_EQ(message<std::invalid_argument>([&] { four().all_gather(output, shard); }),
            "rank 2 (dp=0 tp=1): all_gather on group tp (4 ranks), purpose other, output [8, 3] Float cpu, "
            "input [3, 3] Float cpu: output must be 4 times the shard along dim 0");
}

TEST(Group, RefusesTensorsThatDoNotFit) {
  const Group group = four();
  const auto zeros = [](at::IntArrayRef shape) { return at::zeros(shape, at::kFloat); };
  at::Tensor undefined;
  at::Tensor eight = zeros({8});
  at::Tensor two = zeros({2});
  at::Tensor scalar = zeros({});
  at::Tensor double_two = at::zeros({2}, at::kDouble);
  at::Tensor meta_two = at::zeros({2}, at::TensorOptions(at::kFloat).device(at::kMeta));
  at::Tensor strided = zeros({16}).slice(0, 0, 16, 2);
  at::Tensor strided_two = zeros({4}).slice(0, 0, 4, 2);

  expect_refused([&] { group.all_reduce(undefined); }, "a tensor is undefined");
  expect_refused([&] { group.broadcast(undefined, 0); }, "a tensor is undefined");
  expect_refused([&] { group.all_gather(eight, undefined); }, "a tensor is undefined");
  expect_refused([&] { group.all_reduce(strided); }, "contiguous");
  expect_refused([&] { group.all_gather(strided, two); }, "contiguous");
  expect_refused([&] { group.reduce_scatter(strided_two, eight); }, "contiguous");
  expect_refused([&] { group.all_gather(eight, double_two); }, "one dtype");
  expect_refused([&] { group.all_gather(eight, meta_two); }, "one device");

  at::Tensor matrix = zeros({8, 2});
  expect_refused([&] { group.all_gather(matrix, two); }, "4 times the shard");
  expect_refused([&] { group.all_gather(two, two); }, "4 times the shard");
  expect_refused([&] { group.all_gather(eight, scalar); }, "4 times the shard");
  expect_refused([&] { group.all_gather(matrix, zeros({2, 3})); }, "4 times the shard");
  expect_refused([&] { group.reduce_scatter(eight, eight); }, "4 times the shard");
  expect_refused([&] { group.reduce_scatter(scalar, eight); }, "4 times the shard");
  expect_refused([&] { group.all_to_all(eight, two); }, "same shape");
  at::Tensor six = zeros({6});
  expect_refused([&] { group.all_to_all(six, zeros({6})); }, "must be a multiple");
  expect_refused(
      [&] {
        group.all_to_all(six, {1, 1, 1}, eight, {2, 2, 2, 2});
      },
      "output must have as many rows as its 4 parts");
  expect_refused(
      [&] {
        group.all_to_all(six, {1, 1, 2, 2}, eight, {2, 2, 2, 3});
      },
      "input must have as many rows as its 4 parts");
  expect_refused(
      [&] {
        group.all_to_all(six, {7, 1, -1, -1}, eight, {2, 2, 2, 2});
      },
      "output must have as many rows as its 4 parts");
  expect_refused([&] { group.all_to_all(six, {1, 0, 3, 2}, eight, {2, 2, 2, 2}); }, "own part has two sizes");
  expect_refused([&] { group.exchange(eight, 0, two, 2); }, "output and input must have the same shape");
}

TEST(Group, RefusesRanksThatAreNotThere) {
  const Group group = four();
  at::Tensor tensor = at::zeros({8});
  at::Tensor other = at::zeros({8});
  expect_refused([&] { group.broadcast(tensor, 4); }, "root 4 is not in the group");
  expect_refused([&] { group.broadcast(tensor, -1); }, "root -1 is not in the group");
  expect_refused([&] { group.exchange(tensor, -1, other, 2); }, "must be in the group");
  expect_refused([&] { group.exchange(tensor, 0, other, 4); }, "must be in the group");
  expect_refused([&] { group.exchange(tensor, 1, other, 2); }, "must both be this rank, or both others");
  EXPECT_NO_THROW({ group.exchange(tensor, 1, other, 1); });
}

TEST(Group, RefusesTensorsThatOverlapWhereTheyMayNot) {
  const Group group = four();
  at::Tensor memory = at::zeros({16});
  at::Tensor full = memory.narrow(0, 4, 8);
  const auto part = [&](int64_t begin) { return memory.narrow(0, begin, 2); };
  EXPECT_NO_THROW({ group.all_gather(full, part(6)); });   // the right offset
  EXPECT_NO_THROW({ group.all_gather(full, part(2)); });   // before it
  EXPECT_NO_THROW({ group.all_gather(full, part(12)); });  // after it
  expect_refused([&] { group.all_gather(full, part(4)); }, "own part of it");
  expect_refused([&] { group.all_gather(full, part(5)); }, "overlap");
  expect_refused([&] { group.all_gather(full, part(3)); }, "overlap");
  at::Tensor any_part = part(10);
  EXPECT_NO_THROW({ group.reduce_scatter(any_part, full); });
  at::Tensor across = part(9);
  expect_refused([&] { group.reduce_scatter(across, full); }, "exactly one of its parts");
  expect_refused([&] { group.all_to_all(full, full); }, "overlap");
  expect_refused([&] { group.exchange(full, 0, memory.narrow(0, 0, 8), 2); }, "overlap");
}

TEST(Group, SplitsIntoGroupsInTheOrderAsked) {
  const int n = world().size();
  // Even and odd ranks, the highest first.
  std::vector<int> members;
  for (int rank = n - 1; rank >= 0; --rank) {
    if (rank % 2 == world().rank() % 2) members.push_back(rank);
  }
  const Group half = world().split(members, "half");
  EXPECT_EQ(half.name(), "half");
  EXPECT_EQ(half.size(), static_cast<int>(members.size()));
  EXPECT_EQ(half.ranks()[static_cast<size_t>(half.rank())], world().rank());
  at::Tensor gathered = at::empty({half.size()}, at::kLong);
  half.all_gather(gathered, at::full({1}, world().rank(), at::kLong)).wait();
  for (int i = 0; i < half.size(); ++i) EXPECT_EQ(gathered[i].item<int64_t>(), members[static_cast<size_t>(i)]);

  const Group alone = half.split({half.rank()}, "alone");
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.ranks(), (std::vector<int64_t>{world().rank()}));
}

TEST(Group, RefusesASplitThatMakesNoSense) {
  expect_refused([&] { four().split({0, 1, 4}, "part"); }, "member 4 is not in the group");
  expect_refused([&] { four().split({0, 1, 1}, "part"); }, "member 1 is listed twice");
  expect_refused([&] { four().split({0, 2}, "part"); }, "group rank 1 must list itself");
  expect_refused([&] { Group(dry_run_backend(0, 2), "tp", {0}, "rank 0"); }, "lists 1 rank, its backend has 2");
}

TEST(Group, MpiMovesHostTensorsAndReducesNumbers) {
  if (world().size() == 1) GTEST_SKIP() << "needs several ranks";
  at::Tensor meta = at::zeros({4}, at::TensorOptions(at::kFloat).device(at::kMeta));
  at::Tensor bytes = at::zeros({4}, at::kByte);
  expect_refused([&] { world().all_reduce(meta); }, "host tensors only");
  expect_refused([&] { world().all_reduce(bytes); }, "other dtypes can only be moved");
  EXPECT_THROW(mpi_backend({.piece_bytes = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain

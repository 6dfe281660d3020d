// Collectives on copies in other memory give the results of those in place. CPU tensors are staged like a device's.
#include "mesh/staged.h"

#include <gtest/gtest.h>

#include <numeric>

#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::world;

class Staged : public ::testing::Test {
 protected:
  at::Tensor mine(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) const {
    return testing::random_tensor(shape, 50 + group_.rank(), dtype);
  }

  const Group plain_ = world();
  const Group group_{staged(world().backend(), StagedTensors::All), "staged", world().ranks(),
                     world().coordinate_text()};
  const int size_ = world().size();
};

TEST_F(Staged, SumsAndMaximaAreThoseOfTheBackend) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Reduce op : {Reduce::Sum, Reduce::Max}) {
      at::Tensor expected = mine({5, 7}, dtype), tensor = expected.clone();
      plain_.all_reduce(expected, op).wait();
      group_.all_reduce(tensor, op).wait();
      EXPECT_TRUE(at::equal(tensor, expected));

      const at::Tensor input = mine({3 * size_, 7}, dtype);
      at::Tensor shard = at::zeros({3, 7}, dtype), expected_shard = shard.clone();
      plain_.reduce_scatter(expected_shard, input, op).wait();
      group_.reduce_scatter(shard, input, op).wait();
      EXPECT_TRUE(at::equal(shard, expected_shard));
    }
  }
}

TEST_F(Staged, AShardMayLieInTheWholeTensor) {
  at::Tensor full = at::zeros({size_, 4}, at::kFloat);
  at::Tensor part = full.narrow(0, group_.rank(), 1);
  part.fill_(group_.rank());
  group_.all_gather(full, part).wait();
  for (int rank = 0; rank < size_; ++rank) EXPECT_TRUE(at::equal(full[rank], at::full({4}, rank, at::kFloat)));

  const at::Tensor before = mine({size_, 4}), input = before.clone();
  at::Tensor shard = input.narrow(0, 0, 1), expected = at::empty({1, 4}, at::kFloat);
  plain_.reduce_scatter(expected, before).wait();
  group_.reduce_scatter(shard, input).wait();
  EXPECT_TRUE(at::equal(shard, expected));
  EXPECT_TRUE(at::equal(input.narrow(0, 1, size_ - 1), before.narrow(0, 1, size_ - 1)));
}

TEST_F(Staged, WhatMovesArrives) {
  const int rank = group_.rank(), next = (rank + 1) % size_, previous = (rank + size_ - 1) % size_;
  at::Tensor received = at::zeros({3}, at::kLong);
  group_.exchange(received, previous, at::full({3}, rank, at::kLong), next).wait();
  EXPECT_TRUE(at::equal(received, at::full({3}, previous, at::kLong)));

  at::Tensor out = at::empty({size_, 2}, at::kFloat);
  group_.all_to_all(out, at::arange(size_, at::kFloat).unsqueeze(1).repeat({1, 2}) + 100 * rank).wait();
  for (int from = 0; from < size_; ++from) EXPECT_EQ(out[from][1].item<float>(), 100.0f * from + rank);

  // Rank a sends (a + 2 b) % 3 rows to rank b.
  std::vector<int64_t> sent, rows;
  for (int other = 0; other < size_; ++other) {
    sent.push_back((rank + 2 * other) % 3);
    rows.push_back((other + 2 * rank) % 3);
  }
  at::Tensor parts = at::empty({std::accumulate(rows.begin(), rows.end(), int64_t{0}), 2}, at::kFloat);
  group_
      .all_to_all(parts, rows, at::full({std::accumulate(sent.begin(), sent.end(), int64_t{0}), 2}, rank, at::kFloat),
                  sent)
      .wait();
  int64_t row = 0;
  for (int from = 0; from < size_; ++from) {
    for (int64_t i = 0; i < rows[from]; ++i) EXPECT_EQ(parts[row++][0].item<float>(), from);
  }

  at::Tensor tensor = at::full({4}, rank, at::kHalf);
  group_.broadcast(tensor, size_ - 1).wait();
  EXPECT_TRUE(at::equal(tensor, at::full({4}, size_ - 1, at::kHalf)));
  group_.barrier();
}

TEST_F(Staged, TheResultIsThereWhenItIsWaitedForAndOnlyOnce) {
  at::Tensor tensor = at::ones({3}, at::kFloat);
  const Work work = group_.all_reduce(tensor);
  EXPECT_EQ(tensor[0].item<float>(), 1);
  const Work again = work;
  work.wait();
  EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(size_));
  tensor.fill_(7);
  again.wait();
  EXPECT_EQ(tensor[0].item<float>(), 7);
}

TEST_F(Staged, AutogradSeesNoChange) {
  at::Tensor leaf = at::full({4}, group_.rank(), at::kDouble).set_requires_grad(true);
  const auto version = leaf._version();
  group_.broadcast(leaf, size_ - 1).wait();
  EXPECT_EQ(leaf[0].item<double>(), size_ - 1);
  EXPECT_EQ(leaf._version(), version);
}

TEST_F(Staged, GroupsSplitFromItAreStagedAndShareNoMemory) {
  const DeviceMesh mesh(MeshLayout({{"dp", size_}, {"tp", 1}}), group_);
  at::Tensor tensor = at::ones({2}, at::kFloat);
  const Work work = mesh.group("dp").all_reduce(tensor);
  EXPECT_EQ(tensor[0].item<float>(), 1) << "written before it was waited for";
  work.wait();
  EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(size_));
  EXPECT_EQ(mesh.group("dp").host_ranks(), 1);
  EXPECT_FALSE(mesh.group("dp").window(4, at::kFloat, Placement::Own).defined());
  EXPECT_EQ(mesh.traffic().entries().empty(), size_ == 1);
}

TEST(StagedOnDevices, HostTensorsGoStraightThrough) {
  const Group group(staged(world().backend()), "devices", world().ranks(), world().coordinate_text());
  at::Tensor tensor = at::ones({2}, at::kFloat);
  group.all_reduce(tensor).wait();
  EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(world().size()));
  EXPECT_EQ(group.host_ranks(), 1);
}

}  // namespace
}  // namespace meshtrain

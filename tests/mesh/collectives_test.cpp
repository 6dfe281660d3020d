// Every collective: dtype x length x piece size x in place or not, against results computed from rank and size.
#include <gtest/gtest.h>

#include <numeric>

#include "mesh/device/aten.h"
#include "mesh/group.h"
#include "tests/mesh/worlds.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::world;
using testing::world_in_pieces;

const std::vector<at::ScalarType> kReduced{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong};
const std::vector<at::ScalarType> kMoved{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                         at::kLong,   at::kByte,  at::kBool,     at::kInt};

/// Returns small integers, exact in every dtype, which differ by rank and index.
at::Tensor values(int rank, int64_t length, at::ScalarType dtype, int64_t salt = 0) {
  const at::Tensor indices = at::arange(length, at::kLong);
  return ((indices * 7 + rank * 3 + salt * 5).remainder(11) - (dtype == at::kByte ? 0 : 5)).to(dtype);
}

/// Returns such values for parts [size, length].
at::Tensor parts(int rank, int size, int64_t length, at::ScalarType dtype) {
  std::vector<at::Tensor> rows;
  for (int part = 0; part < size; ++part) rows.push_back(values(rank, length, dtype, part));
  return at::stack(rows);
}

at::Tensor reduced(const std::vector<at::Tensor>& contributions, Reduce op) {
  const at::Tensor all = at::stack(contributions).to(at::kDouble);
  return (op == Reduce::Sum ? all.sum(0) : all.amax(0)).to(contributions[0].scalar_type());
}

std::string of(at::ScalarType dtype, int64_t length) {
  return std::string(c10::toString(dtype)) + ", length " + std::to_string(length);
}

/// The messages: the largest size, and the number of ranks contacted at a time (world_in_pieces()).
struct Messages {
  int64_t piece_bytes;
  int fan_out = 0;
};

class Collectives : public ::testing::TestWithParam<Messages> {
 protected:
  const Group& group_ = world_in_pieces(GetParam().piece_bytes, GetParam().fan_out);
  const int rank_ = group_.rank();
  const int size_ = group_.size();
  /// With pieces of one element the longest message has more pieces than tags exist.
  const std::vector<int64_t> lengths_{0, 1, 2, 3, 17, GetParam().piece_bytes == 1 ? 70 : 1000};
};

TEST_P(Collectives, AllReduce) {
  for (const at::ScalarType dtype : kReduced) {
    for (const int64_t length : lengths_) {
      for (const Reduce op : {Reduce::Sum, Reduce::Max}) {
        std::vector<at::Tensor> all;
        for (int rank = 0; rank < size_; ++rank) all.push_back(values(rank, length, dtype));
        at::Tensor tensor = all[rank_].clone();
        group_.all_reduce(tensor, op).wait();
        ASSERT_TRUE(at::equal(tensor, length == 0 ? tensor : reduced(all, op))) << of(dtype, length);
      }
    }
  }
}

TEST_P(Collectives, ReduceScatter) {
  for (const at::ScalarType dtype : kReduced) {
    for (const int64_t length : lengths_) {
      for (const Reduce op : {Reduce::Sum, Reduce::Max}) {
        std::vector<at::Tensor> all;
        for (int rank = 0; rank < size_; ++rank) all.push_back(parts(rank, size_, length, dtype));
        const at::Tensor expected = length == 0 ? all[0][0] : reduced(all, op)[rank_];
        // Into a separate tensor (-1), and into each part of the input.
        for (int target = -1; target < size_; ++target) {
          const at::Tensor input = all[rank_].clone();
          at::Tensor shard = target < 0 ? at::zeros({1, length}, input.options()) : input.narrow(0, target, 1);
          group_.reduce_scatter(shard, input, op).wait();
          ASSERT_TRUE(at::equal(shard[0], expected)) << of(dtype, length) << ", part " << target;
          for (int part = 0; part < size_; ++part) {
            ASSERT_TRUE(part == target || at::equal(input[part], all[rank_][part])) << "part " << part;
          }
        }
      }
    }
  }
}

TEST_P(Collectives, AllGather) {
  for (const at::ScalarType dtype : kMoved) {
    for (const int64_t length : lengths_) {
      for (const bool in_place : {false, true}) {
        at::Tensor output = at::zeros({size_, length}, dtype);
        const at::Tensor mine = values(rank_, length, dtype).unsqueeze(0);
        at::Tensor shard = in_place ? output.narrow(0, rank_, 1) : mine;
        if (in_place) shard.copy_(mine);
        group_.all_gather(output, shard).wait();
        for (int rank = 0; rank < size_; ++rank) {
          ASSERT_TRUE(at::equal(output[rank], values(rank, length, dtype))) << of(dtype, length) << " of " << rank;
        }
      }
    }
  }
}

TEST_P(Collectives, AllToAll) {
  for (const at::ScalarType dtype : kMoved) {
    for (const int64_t length : lengths_) {
      at::Tensor output = at::zeros({size_, length}, dtype);
      group_.all_to_all(output, parts(rank_, size_, length, dtype)).wait();
      for (int rank = 0; rank < size_; ++rank) {
        ASSERT_TRUE(at::equal(output[rank], values(rank, length, dtype, rank_))) << of(dtype, length);
      }
    }
  }
}

// Rank a sends (a + 2 b) % 3 * length elements to rank b: none between some ranks, and different numbers in the two
// directions.
TEST_P(Collectives, AllToAllOfPartsThatDiffer) {
  for (const at::ScalarType dtype : kMoved) {
    for (const int64_t length : lengths_) {
      const auto count = [&](int from, int to) { return (from + 2 * to) % 3 * length; };
      std::vector<int64_t> sent, received;
      std::vector<at::Tensor> parts;
      for (int rank = 0; rank < size_; ++rank) {
        sent.push_back(count(rank_, rank));
        received.push_back(count(rank, rank_));
        parts.push_back(values(rank_, sent.back(), dtype, rank));
      }
      at::Tensor output = at::zeros({std::accumulate(received.begin(), received.end(), int64_t{0})}, dtype);
      group_.all_to_all(output, received, at::cat(parts), sent).wait();
      int64_t begin = 0;
      for (int rank = 0; rank < size_; ++rank) {
        ASSERT_TRUE(at::equal(output.narrow(0, begin, received[rank]), values(rank, received[rank], dtype, rank_)))
            << of(dtype, length) << " of " << rank;
        begin += received[rank];
      }
    }
  }
}

TEST_P(Collectives, ExchangeOverEveryDistance) {
  for (const at::ScalarType dtype : kMoved) {
    for (const int64_t length : lengths_) {
      for (int distance = 0; distance < size_; ++distance) {
        const int from = (rank_ - distance + size_) % size_;
        at::Tensor received = at::zeros({length}, dtype);
        group_.exchange(received, from, values(rank_, length, dtype), (rank_ + distance) % size_).wait();
        ASSERT_TRUE(at::equal(received, values(from, length, dtype))) << of(dtype, length) << " from " << from;
      }
    }
  }
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  for (const at::ScalarType dtype : kMoved) {
    for (const int64_t length : lengths_) {
      for (int root = 0; root < size_; ++root) {
        at::Tensor tensor = values(rank_, length, dtype);
        group_.broadcast(tensor, root).wait();
        ASSERT_TRUE(at::equal(tensor, values(root, length, dtype))) << of(dtype, length) << " from " << root;
      }
    }
  }
}

TEST_P(Collectives, ManyUnderWayAtOnce) {
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 300; ++i) {  // more than tags for operations exist
    tensors.push_back(at::full({i % 7 * 31}, double(i + rank_), at::kDouble));
    works.push_back(group_.all_reduce(tensors.back()));
  }
  for (int i = 299; i >= 0; i -= rank_ + 1) works[i].wait();  // another order on every rank
  for (int i = 0; i < 300; ++i) {
    works[i].wait();
    const double sum = i * size_ + size_ * (size_ - 1) / 2.0;
    ASSERT_TRUE(at::equal(tensors[i], at::full_like(tensors[i], sum))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Pieces, Collectives,
                         ::testing::Values(Messages{1}, Messages{64}, Messages{300}, Messages{4 << 20}, Messages{1, 2},
                                           Messages{64, 3}, Messages{4 << 20, 2}),
                         [](const auto& each) {
                           const std::string fan_out = std::to_string(each.param.fan_out);
                           return std::to_string(each.param.piece_bytes) + "_bytes" +
                                  (each.param.fan_out == 0 ? "" : "_to_" + fan_out);
                         });

TEST(CollectiveArithmetic, SumsInTheOrderOfRanksAndHalvesInSinglePrecision) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t piece : {64, 4 << 20}) {
      const Group& group = world_in_pieces(piece);
      for (const int64_t length : {5, 20001}) {
        const auto mine = [&](int rank) { return testing::random_tensor({length}, 100 + rank, dtype); };
        const at::ScalarType sum_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
        at::Tensor sum = mine(0).to(sum_dtype);
        for (int rank = 1; rank < group.size(); ++rank) sum += mine(rank).to(sum_dtype);
        const at::Tensor expected = sum.to(dtype);

        at::Tensor tensor = mine(group.rank());
        group.all_reduce(tensor).wait();
        EXPECT_TRUE(at::equal(tensor, expected)) << of(dtype, length);

        const at::Tensor input = mine(group.rank()).repeat({group.size(), 1});
        at::Tensor shard = at::empty({1, length}, input.options());
        group.reduce_scatter(shard, input).wait();
        EXPECT_TRUE(at::equal(shard[0], expected)) << of(dtype, length);
      }
    }
  }
}

/// Returns the sum of `parts`: of runs of `run` parts, then of runs of such sums, and so on.
at::Tensor sum_of_runs(std::vector<at::Tensor> parts, size_t run) {
  while (parts.size() > 1) {
    std::vector<at::Tensor> sums;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i % run == 0) {
        sums.push_back(parts[i].clone());
      } else {
        sums.back() += parts[i];
      }
    }
    parts = std::move(sums);
  }
  return parts[0];
}

// The order of sums is that in mpi.h, for short and long all-reduces; maxima have no order.
TEST(CollectiveArithmetic, SumsOfManyRanksAreSumsOfRunsOfThem) {
  const int n = world().size();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int fan_out : {2, 3}) {
      const Group& group = world_in_pieces(300, fan_out);
      for (const int64_t length : {5, 20001}) {
        std::vector<at::Tensor> parts;
        const at::ScalarType sum_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
        for (int rank = 0; rank < n; ++rank) {
          parts.push_back(testing::random_tensor({length}, 100 + rank, dtype).to(sum_dtype));
        }
        const bool is_short = length == 5;
        const at::Tensor runs = sum_of_runs(parts, n <= fan_out ? n : fan_out).to(dtype);
        const at::Tensor pairs = sum_of_runs(parts, 2).to(dtype);  // the largest factor of 4 and of 8 below 4

        at::Tensor tensor = parts[group.rank()].to(dtype, false, /*copy=*/true);
        group.all_reduce(tensor).wait();
        EXPECT_TRUE(at::equal(tensor, is_short ? runs : pairs)) << of(dtype, length) << " by " << fan_out;

        const at::Tensor input = parts[group.rank()].to(dtype).repeat({n, 1});
        at::Tensor shard = at::empty({1, length}, input.options());
        group.reduce_scatter(shard, input).wait();
        EXPECT_TRUE(at::equal(shard[0], pairs)) << of(dtype, length) << " by " << fan_out;

        tensor = parts[group.rank()].to(dtype, false, /*copy=*/true);
        group.all_reduce(tensor, Reduce::Max).wait();
        EXPECT_TRUE(at::equal(tensor, at::stack(parts).amax(0).to(dtype))) << of(dtype, length) << " by " << fan_out;
      }
    }
  }
}

TEST(CollectiveArithmetic, NotANumberSurvivesSumAndMaximum) {
  const Group& group = world();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (int culprit = 0; culprit < group.size(); ++culprit) {
      for (const Reduce op : {Reduce::Sum, Reduce::Max}) {
        at::Tensor tensor = at::ones({3}, dtype);
        if (group.rank() == culprit) tensor[1].fill_(NAN);
        group.all_reduce(tensor, op).wait();
        EXPECT_TRUE(tensor.isnan()[1].item<bool>());
        EXPECT_FALSE(tensor.isnan()[2].item<bool>());
      }
    }
  }
}

TEST(CollectiveArithmetic, MaximumOfInfinitiesAndNegatives) {
  const Group& group = world();
  at::Tensor tensor = at::full({2}, -1.5 - group.rank(), at::kFloat);
  tensor[1].fill_(group.rank() == group.size() - 1 ? INFINITY : -INFINITY);
  group.all_reduce(tensor, Reduce::Max).wait();
  EXPECT_EQ(tensor[0].item<float>(), -1.5f);
  EXPECT_EQ(tensor[1].item<float>(), INFINITY);
}

TEST(CollectiveArithmetic, LongTensorsInPiecesOfTheUsualSize) {
  const Group& group = world();
  const int64_t length = 3'400'001;  // more than three pieces
  at::Tensor tensor = at::arange(length, at::kFloat).remainder(1000) + group.rank();
  group.all_reduce(tensor).wait();
  const int n = group.size();
  const at::Tensor expected = at::arange(length, at::kFloat).remainder(1000) * n + n * (n - 1) / 2;
  EXPECT_TRUE(at::equal(tensor, expected));

  at::Tensor gathered = at::empty({n, length}, at::kFloat);
  group.all_gather(gathered, at::full({1, length}, group.rank(), at::kFloat)).wait();
  at::Tensor shard = at::empty({1, length}, at::kFloat);
  group.reduce_scatter(shard, gathered).wait();
  EXPECT_TRUE(at::equal(shard, at::full_like(shard, group.rank() * n)));
}

TEST(CollectiveArithmetic, ShapesBeyondOneDim) {
  const Group& group = world();
  const int n = group.size();
  const at::Tensor shard = at::full({2, 3, 4}, group.rank(), at::kDouble);
  at::Tensor output = at::empty({2 * n, 3, 4}, at::kDouble);
  group.all_gather(output, shard).wait();
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_TRUE(at::equal(output.narrow(0, 2 * rank, 2), at::full({2, 3, 4}, rank, at::kDouble)));
  }
  at::Tensor scalar = at::scalar_tensor(1.0, at::kDouble);
  group.all_reduce(scalar).wait();
  EXPECT_EQ(scalar.item<double>(), n);
}

TEST(CollectiveArithmetic, LeavesThatRequireGradientsMayBeReceivedInto) {
  const Group& group = world();
  at::Tensor leaf = at::full({4}, group.rank(), at::kDouble).set_requires_grad(true);
  group.broadcast(leaf, group.size() - 1).wait();
  EXPECT_EQ(leaf[0].item<double>(), group.size() - 1);
  at::Tensor gathered = at::zeros({4 * group.size()}, at::kDouble).set_requires_grad(true);
  group.all_gather(gathered, leaf).wait();
  EXPECT_EQ(gathered[0].item<double>(), group.size() - 1);
}

}  // namespace
}  // namespace meshtrain

// Collectives of GPU tensors, on every transport, against those of host tensors. Ranks may share a GPU; NCCL runs when
// none is shared, also on one rank. Without a GPU the tests are skipped.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>

#include "mesh/agree.h"
#include "mesh/backends/nccl/nccl.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "mesh/device/cuda/plugin.h"
#include "mesh/device_mesh.h"
#include "mesh/staged.h"
#include "tests/support/files.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::world;

class DeviceCollectives : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string build = testing::build_folder();
    if (!std::filesystem::exists(build + "/libmeshtrain_cuda.so")) GTEST_SKIP() << "needs the plug-in";
    CudaPlugin& plugin = open_cuda_plugin(build);
    int gpu = 0;
    try {
      gpu = world().rank() % plugin.prepare();
    } catch (const InputError& error) {
      GTEST_SKIP() << error.what();
    }
    plugin.use(gpu);
    device_ = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
    std::shared_ptr<Backend> backend = staged(world().backend());
    if (std::string(GetParam()) != "staged") {
      const std::vector<std::string> gpus = gather_texts(world(), plugin.identity(gpu));
      const bool apart = std::set<std::string>(gpus.begin(), gpus.end()).size() == gpus.size();
      if (broadcast_text(world(), apart ? "yes" : "").empty()) GTEST_SKIP() << "NCCL needs a GPU for each rank";
      backend = connect_nccl(world().backend(), {.user_buffers = user_buffers()});
    }
    group_ = Group(backend, "device", world().ranks(), world().coordinate_text());
  }

  static NcclBuffers user_buffers() {
    if (std::string(GetParam()) == "nccl_registered") return NcclBuffers::Registered;
    return std::string(GetParam()) == "nccl_symmetric" ? NcclBuffers::Symmetric : NcclBuffers::Off;
  }

  at::Tensor mine(at::IntArrayRef shape, at::ScalarType dtype) const {
    return testing::random_tensor(shape, 70 + world().rank(), dtype);
  }

  at::Device device_ = at::kCPU;
  Group group_;
  const int size_ = world().size();
};

TEST_P(DeviceCollectives, SumsAndMaxima) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const double tolerance = dtype == at::kDouble ? 1e-14 : dtype == at::kFloat ? 1e-6 : 0.02;
    for (const Reduce op : {Reduce::Sum, Reduce::Max}) {
      at::Tensor expected = mine({1001, 3}, dtype), tensor = expected.to(device_);
      world().all_reduce(expected, op).wait();
      group_.all_reduce(tensor, op).wait();
      EXPECT_LE(testing::relative_error(tensor.cpu(), expected), tolerance);

      // Into a separate tensor (-1), and into each part of the input.
      const at::Tensor input = mine({3 * size_, 7}, dtype);
      at::Tensor of_host = at::zeros({3, 7}, dtype);
      world().reduce_scatter(of_host, input, op).wait();
      for (int target = -1; target < size_; ++target) {
        const at::Tensor there = input.to(device_, /*non_blocking=*/false, /*copy=*/true);
        at::Tensor shard = target < 0 ? at::zeros({3, 7}, there.options()) : there.narrow(0, 3 * target, 3);
        group_.reduce_scatter(shard, there, op).wait();
        EXPECT_LE(testing::relative_error(shard.cpu(), of_host), tolerance) << target;
      }
    }
  }
}

TEST_P(DeviceCollectives, WhatMovesArrivesAsItWas) {
  const int rank = group_.rank(), next = (rank + 1) % size_, previous = (rank + size_ - 1) % size_;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte, at::kBool}) {
    const auto of = [&](int from, int to) { return at::full({2, 3}, from * 7 + to + 1, at::kLong).to(dtype); };
    const auto expect = [&](const at::Tensor& found, const at::Tensor& expected) {
      EXPECT_TRUE(at::equal(found.cpu(), expected)) << c10::toString(dtype);
    };
    at::Tensor received = at::zeros({2, 3}, at::TensorOptions(device_).dtype(dtype));
    group_.exchange(received, previous, of(rank, next).to(device_), next).wait();
    expect(received, of(previous, rank));

    std::vector<at::Tensor> parts, arrived, all;
    for (int other = 0; other < size_; ++other) {
      parts.push_back(of(rank, other));
      arrived.push_back(of(other, rank));
      all.push_back(of(other, 0));
    }
    at::Tensor output = at::zeros({2 * size_, 3}, received.options());
    group_.all_to_all(output, at::cat(parts).to(device_)).wait();
    expect(output, at::cat(arrived));

    output.zero_();
    at::Tensor own = output.narrow(0, 2 * rank, 2);
    own.copy_(of(rank, 0));
    group_.all_gather(output, own).wait();
    expect(output, at::cat(all));

    at::Tensor tensor = of(rank, 0).to(device_);
    group_.broadcast(tensor, size_ - 1).wait();
    expect(tensor, of(size_ - 1, 0));
  }
}

// Rank a sends (a + 2 b) % 3 rows to rank b.
TEST_P(DeviceCollectives, PartsThatDiffer) {
  const int rank = group_.rank();
  std::vector<int64_t> sent, received;
  std::vector<at::Tensor> expected;
  for (int other = 0; other < size_; ++other) {
    sent.push_back((rank + 2 * other) % 3);
    received.push_back((other + 2 * rank) % 3);
    expected.push_back(at::full({received.back(), 5}, other, at::kFloat));
  }
  const int64_t rows = std::accumulate(sent.begin(), sent.end(), int64_t{0});
  at::Tensor output = at::zeros({at::cat(expected).size(0), 5}, device_);
  group_.all_to_all(output, received, at::full({rows, 5}, rank, at::kFloat).to(device_), sent).wait();
  EXPECT_TRUE(at::equal(output.cpu(), at::cat(expected)));
}

// Work on the current stream before and after a collective runs before and after it.
TEST_P(DeviceCollectives, KeepTheOrderOfTheStream) {
  at::Tensor tensor = at::zeros({1 << 20}, device_);
  for (int step = 0; step < 50; ++step) {
    tensor.add_(1);
    group_.all_reduce(tensor).wait();
    tensor.div_(size_);
  }
  EXPECT_TRUE(at::equal(tensor.cpu(), at::full({1 << 20}, 50, at::kFloat)));
}

// Nothing else gets the memory that a collective reads and writes before it is waited for, whatever else is issued.
TEST_P(DeviceCollectives, KeepTheirTensors) {
  constexpr int64_t kRows = 1 << 14;
  const auto of = [&](int from, int to) { return at::full({kRows}, from * size_ + to + 1, at::kFloat); };
  const auto all = [&](const auto& part) {
    std::vector<at::Tensor> parts;
    for (int other = 0; other < size_; ++other) parts.push_back(part(other));
    return at::cat(parts);
  };
  for (int time = 0; time < 5; ++time) {
    at::Tensor output = at::zeros({size_ * kRows}, device_), small = at::ones({1}, device_);
    Work work, other;
    {
      const at::Tensor input = all([&](int to) { return of(group_.rank(), to); }).to(device_);
      work = group_.all_to_all(output, input);
    }
    std::vector<at::Tensor> others;
    for (int i = 0; i < 4; ++i) others.push_back(at::full({size_ * kRows}, NAN, device_));
    other = group_.all_reduce(small);
    for (int i = 0; i < 4; ++i) others.push_back(at::full({size_ * kRows}, NAN, device_));
    work.wait();
    other.wait();
    EXPECT_TRUE(at::equal(output.cpu(), all([&](int from) { return of(from, group_.rank()); })));
  }
}

TEST_P(DeviceCollectives, GroupsOfAMeshAndHostTensors) {
  const DeviceMesh mesh(MeshLayout({{"dp", size_ % 2 == 0 ? size_ / 2 : size_}, {"tp", size_ % 2 == 0 ? 2 : 1}}),
                        group_);
  for (const char* axis : {"dp", "tp"}) {
    const Group& group = mesh.group(axis);
    for (const at::Device device : {device_, at::Device(at::kCPU)}) {
      at::Tensor tensor = at::full({3}, world().rank(), at::TensorOptions(device).dtype(at::kDouble));
      group.all_reduce(tensor).wait();
      const double sum = std::accumulate(group.ranks().begin(), group.ranks().end(), 0.0);
      EXPECT_EQ(tensor[0].item<double>(), sum) << axis << " on " << device;
    }
  }
  group_.barrier();
}

// A group and the groups split from it register windows; they are freed and made again.
TEST_P(DeviceCollectives, WindowsAreUserBuffers) {
  const at::TensorOptions options(device_);
  EXPECT_FALSE(group_.window(8, options, Placement::Common).defined());
  const DeviceMesh mesh(MeshLayout({{"dp", size_}}), group_);
  for (int time = 0; time < 3; ++time) {
    at::Tensor window = group_.window(size_ * int64_t{1000}, options, Placement::Own);
    EXPECT_EQ(window.defined(), user_buffers() != NcclBuffers::Off);
    if (!window.defined()) return;
    EXPECT_EQ(window.count_nonzero().item<int64_t>(), 0);
    for (const Group& group : {group_, mesh.group("dp")}) {
      at::Tensor own = window.narrow(0, 1000 * group.rank(), 1000);
      own.fill_(group.rank() + 1);
      group.all_gather(window, own).wait();
      EXPECT_EQ(window.sum().item<double>(), 1000.0 * size_ * (size_ + 1) / 2);
      group.reduce_scatter(own, window).wait();
      EXPECT_EQ(own.sum().item<double>(), 1000.0 * size_ * (group.rank() + 1));
      group.barrier();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Carriers, DeviceCollectives,
                         ::testing::Values("staged", "nccl", "nccl_registered", "nccl_symmetric"),
                         [](const auto& carrier) { return std::string(carrier.param); });

}  // namespace
}  // namespace meshtrain

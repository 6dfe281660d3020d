#include <gtest/gtest.h>

#include <stdexcept>

#include "mesh/device/aten.h"
#include "mesh/device/cuda/plugin.h"
#include "tests/gpu/reference.h"

namespace meshtrain {
namespace {

at::Tensor on_gpu(const at::Tensor& host) {
  return host.to(at::kCUDA);
}

// Matrix products and the graph's own memory; the inputs of the recorded work change in each replay.
TEST(GraphOnGpu, ReplaysWhatWasRecorded) {
  const at::Tensor x = on_gpu(at::randn({64, 32})), w = on_gpu(at::randn({32, 48}));
  const auto work = [&] { return at::mm(x, w).tanh().sum(0) * 2; };
  work();
  const auto graph = open_cuda_plugin().make_graph(0);
  at::Tensor result;
  graph->record([&] { result = work(); });
  for (int i = 0; i < 3; ++i) {
    x.copy_(on_gpu(at::randn({64, 32})));
    graph->replay();
    const at::Tensor others = on_gpu(at::full({1 << 16}, NAN));  // must not get the graph's memory
    EXPECT_TRUE(at::equal(result, work()));
  }
}

TEST(GraphOnGpu, SaysWhatWentWrongAndLeavesTheStreamAsItWas) {
  const auto graph = open_cuda_plugin().make_graph(0);
  const at::Tensor x = on_gpu(at::ones({5}));
  EXPECT_THROW(graph->record([&] {
    (x + 1).sum();
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  EXPECT_EQ((x + 1).sum().item<double>(), 10);
  const auto next = open_cuda_plugin().make_graph(0);
  at::Tensor sum;
  next->record([&] { sum = x.sum(); });
  next->replay();
  EXPECT_EQ(sum.item<double>(), 5);
}

TEST(GraphOnGpu, NeedsTheNumberOfAGpu) {
  EXPECT_GE(testing::gpu().index(), 0);
  try {
    open_cuda_plugin().make_graph(at::Device(at::kCUDA).index());
    FAIL() << "a device without an index was taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "CUDA graph: a GPU's number is 0 or more, not -1: give a device with an index");
  }
}

}  // namespace
}  // namespace meshtrain

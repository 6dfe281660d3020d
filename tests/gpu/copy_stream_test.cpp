// The costs of copies between host and GPU.
#include "mesh/device/copy_stream.h"

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "mesh/device/pinned_memory.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kNumel = int64_t{1} << 22;

TEST(CopyStream, CountsTheTimeForWhichTheGpuWaits) {
  if (!gpu().is_cuda()) GTEST_SKIP() << "copies on the host are complete when copy() returns";
  CopyStream stream(gpu());
  const at::Tensor host = pinned_zeros(kNumel, at::kFloat, gpu(), ""), device = at::empty({kNumel}, gpu());
  const auto copy = [&] {
    stream.copy(device, host, CopyDirection::ToDevice);
    return stream.mark();
  };
  const StreamMark copied = copy();
  wait_for_gpu();
  copied.wait();
  wait_for_gpu();
  EXPECT_EQ(stream.costs().exposed, 0) << "the copy had ended";

  copy().wait();
  wait_for_gpu();
  const double of_stream = stream.costs().exposed;
  EXPECT_GT(of_stream, 0);

  copy().synchronize();
  EXPECT_GT(stream.costs().exposed, of_stream) << "the host issues no work before the copy has ended";
  EXPECT_EQ(stream.costs().to_device, 3 * 4 * kNumel);
}

}  // namespace
}  // namespace meshtrain::testing

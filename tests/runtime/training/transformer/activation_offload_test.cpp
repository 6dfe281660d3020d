// The copies of ActivationOffload, and when they are started, counted on the Meta device.
#include "runtime/training/transformer/activation_offload.h"

#include <gtest/gtest.h>

#include <vector>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

constexpr int64_t kBlocks = 4, kRows = 64, kBytes = kRows * kRows * 4;  // of an activation

/// Blocks of x * w, each of which saves x and w.
class ActivationOffloadTest : public ::testing::Test {
 protected:
  ActivationOffloadTest() {
    for (int64_t block = 0; block < kBlocks; ++block) {
      weights_.push_back(at::ones({kRows, kRows}, at::kMeta).set_requires_grad(true));
    }
  }

  at::Tensor forward(const at::Tensor& input) {
    offload_.begin_forward();
    at::Tensor x = input;
    for (const at::Tensor& weight : weights_) {
      x = offload_.compute({weight}, [&] { return x * weight; });
      if (x.requires_grad()) {
        x.register_hook([this](const at::Tensor&) { copied_.push_back(offload_.copy_costs().bytes() / kBytes); });
      }
      offload_.end_block(x);
    }
    return x;
  }

  std::vector<at::Tensor> weights_;
  ActivationOffload offload_{at::kMeta, kBlocks};
  std::vector<int64_t> copied_;  // when the backward of each block began, in activations
};

TEST_F(ActivationOffloadTest, TensorsReturnOneBlockAheadAndWeightsStay) {
  const at::Tensor input = at::ones({kRows, kRows}, at::kMeta).set_requires_grad(true);
  for (int micro_batch = 1; micro_batch <= 2; ++micro_batch) {
    const at::Tensor y = forward(input);
    const int64_t before = 2 * (kBlocks - 1) * (micro_batch - 1), sent = before + kBlocks - 1;
    EXPECT_EQ(offload_.copy_costs().bytes(), sent * kBytes) << "the last block keeps its own";
    copied_.clear();
    y.sum().backward();
    // The hook of a block's result is called before the one that starts copies: those of the blocks after it count.
    EXPECT_EQ(copied_, (std::vector<int64_t>{sent, sent + 1, sent + 2, sent + 3}));
    EXPECT_EQ(offload_.host_bytes(), (kBlocks - 1) * kBytes) << "reused";
  }
}

TEST_F(ActivationOffloadTest, WithoutRecordingNothingMoves) {
  const at::NoGradGuard no_grad;
  forward(at::ones({kRows, kRows}, at::kMeta));
  EXPECT_EQ(offload_.copy_costs().bytes(), 0);
}

TEST_F(ActivationOffloadTest, WhatIsSavedTwiceIsCopiedOnce) {
  offload_.begin_forward();
  const at::Tensor input = at::ones({kRows, kRows}, at::kMeta).set_requires_grad(true);
  const at::Tensor x = input + 1;
  const at::Tensor y = offload_.compute({}, [&] { return x * x.t() * x.narrow(0, 0, 1); });
  offload_.end_block(y);
  EXPECT_EQ(offload_.copy_costs().bytes(), 2 * kBytes) << "x with all its views, and x * x^T";
}

}  // namespace
}  // namespace meshtrain

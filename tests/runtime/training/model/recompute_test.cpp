#include "runtime/training/model/recompute.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <stdexcept>

#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

class CountedHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit CountedHook(int* count) : count_(count) {}
  void operator()(const at::Tensor&) override { ++*count_; }

 private:
  int* count_;
};

/// The layer y = tanh(x w), applied twice, with a leaf whose gradient has a buffer.
struct Layer {
  Layer() {
    weight.mutable_grad() = at::zeros_like(weight);
    torch::autograd::impl::set_post_acc_grad_hooks(weight, std::make_unique<CountedHook>(&num_hooks));
  }

  at::Tensor operator()(const at::Tensor& x) {
    ++num_calls;
    return x.mm(weight).tanh().mm(weight).tanh();
  }
  at::Tensor recompute(const at::Tensor& x) {
    return recomputed(
        {x}, [this](const auto& inputs) { return (*this)(inputs[0]); }, weight.requires_grad());
  }

  at::Tensor weight = random_tensor({6, 6}, 1).requires_grad_();
  int num_calls = 0;
  int num_hooks = 0;
};

at::Tensor input(bool wants_gradient = true) {
  return random_tensor({4, 6}, 2).set_requires_grad(wants_gradient);
}

TEST(Recompute, GivesTheSameBits) {
  Layer kept, again;
  const at::Tensor x = input(), x_again = input();
  const at::Tensor y = kept(x), y_again = again.recompute(x_again);
  EXPECT_TRUE(at::equal(y, y_again));
  y.sum().backward();
  y_again.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), x_again.grad()));
  EXPECT_TRUE(at::equal(kept.weight.grad(), again.weight.grad()));
  EXPECT_EQ(again.num_calls, 2);
  EXPECT_EQ(again.num_hooks, 1);
}

TEST(Recompute, AddsToTheLeafsBufferInEachBackward) {
  Layer kept, again;
  const void* buffer = again.weight.grad().data_ptr();
  kept(input()).sum().backward({}, /*retain_graph=*/true);
  kept(input()).sum().backward();
  const at::Tensor loss = again.recompute(input()).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_EQ(again.weight.grad().data_ptr(), buffer);
  EXPECT_TRUE(at::equal(kept.weight.grad(), again.weight.grad()));
}

TEST(Recompute, NeedsNoGradientOfItsInput) {
  Layer kept, again;
  kept(input(false)).sum().backward();
  again.recompute(input(false)).sum().backward();
  EXPECT_TRUE(at::equal(kept.weight.grad(), again.weight.grad()));
}

TEST(Recompute, GivesEachInputItsGradient) {
  Layer kept, again;
  for (const bool first_wants : {true, false}) {
    const auto inputs = [&] { return std::vector<at::Tensor>{input(first_wants), random_tensor({4, 6}, 3)}; };
    const std::vector<at::Tensor> plain = inputs(), repeated = inputs();
    for (const at::Tensor& second : {plain[1], repeated[1]}) second.set_requires_grad(true);
    const auto function = [](Layer& layer, const std::vector<at::Tensor>& of) { return layer(of[0] * of[1]) + of[1]; };
    const at::Tensor y = function(kept, plain);
    const at::Tensor y_again = recomputed(
        repeated, [&](const std::vector<at::Tensor>& of) { return function(again, of); }, /*trainable=*/true);
    EXPECT_TRUE(at::equal(y, y_again));
    y.sum().backward();
    y_again.sum().backward();
    EXPECT_EQ(repeated[0].grad().defined(), first_wants);
    if (first_wants) {
      EXPECT_TRUE(at::equal(plain[0].grad(), repeated[0].grad()));
    }
    EXPECT_TRUE(at::equal(plain[1].grad(), repeated[1].grad()));
    EXPECT_TRUE(at::equal(kept.weight.grad(), again.weight.grad()));
  }
}

TEST(Recompute, OfAFrozenPartCostsNothingUnlessItsInputWantsAGradient) {
  Layer frozen;
  frozen.weight.mutable_grad().reset();
  frozen.weight.set_requires_grad(false);
  EXPECT_FALSE(frozen.recompute(input(false)).requires_grad());
  EXPECT_EQ(frozen.num_calls, 1);
  const at::Tensor x = input(), wanted = input();
  frozen.recompute(x).sum().backward();
  frozen(wanted).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), wanted.grad()));
}

TEST(Recompute, WithoutRecordingIsTheFunction) {
  Layer layer;
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(layer.recompute(input()).requires_grad());
  EXPECT_EQ(layer.num_calls, 1);
}

TEST(Recompute, PassesErrorsOn) {
  Layer layer;
  const at::Tensor y = recomputed(
      {input()},
      [&](const auto& inputs) {
        if (layer.num_calls == 1) throw std::out_of_range("in backward");
        return layer(inputs[0]);
      },
      true);
  EXPECT_THROW(y.sum().backward(), std::out_of_range);
}

TEST(Recompute, RefusesWhatItCannotGive) {
  Layer layer;
  const at::Tensor x = input();
  EXPECT_THROW(torch::autograd::grad({layer.recompute(x).sum()}, {x}), std::logic_error);
  EXPECT_THROW(torch::autograd::backward({layer.recompute(x).sum()}, {}, std::nullopt, /*create_graph=*/true),
               std::logic_error);
}

TEST(Recompute, EveryNthBlock) {
  const Recomputation all{Recompute::All, 1}, third{Recompute::Elementwise, 3}, none{};
  for (int64_t block = 0; block < 7; ++block) {
    EXPECT_EQ(all.of(block), Recompute::All);
    EXPECT_EQ(third.of(block), block % 3 == 0 ? Recompute::Elementwise : Recompute::Nothing);
    EXPECT_EQ(none.of(block), Recompute::Nothing);
  }
}

TEST(Recomputation, OfTheFirstBlocksOfEachStage) {
  const auto blocks_of = [](const Recomputation& choice) {
    std::vector<int64_t> blocks;
    for (int64_t block = 0; block < 9; ++block) {
      if (choice.of(block) == Recompute::All) blocks.push_back(block);
    }
    return blocks;
  };
  EXPECT_EQ(blocks_of({.what = Recompute::All, .first = 4}), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(blocks_of({.what = Recompute::All, .every = 2, .first = 4}), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(blocks_of({.what = Recompute::All, .first = 2, .stages = {3, 4, 2}}),
            (std::vector<int64_t>{0, 1, 3, 4, 7, 8}));
}

}  // namespace
}  // namespace meshtrain::testing

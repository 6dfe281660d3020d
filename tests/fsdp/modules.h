#pragma once

#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include <functional>

namespace meshtrain::testing {

/// A module with GroupNorm and BatchNorm, a layer that no loss uses, and a layer that is used twice under two names.
struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    first = register_module("first", torch::nn::Linear(12, 32));
    groups = register_module("groups", torch::nn::GroupNorm(torch::nn::GroupNormOptions(4, 32)));
    unused = register_module("unused", torch::nn::Linear(32, 4));
    middle = register_module("middle", torch::nn::Linear(32, 32));
    batch = register_module("batch", torch::nn::BatchNorm1d(32));
    register_module("again", middle);
    last = register_module("last", torch::nn::Linear(32, 5));
  }

  /// Returns the sum of the losses. x: [B, 12]; labels: int64 [B].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& labels) {
    at::Tensor y = at::tanh(groups(first(x)));
    y = y + batch(middle(y));
    y = at::tanh(middle(y));
    return at::cross_entropy_loss(last(y), labels, {}, at::Reduction::Sum);
  }

  torch::nn::Linear first = nullptr, unused = nullptr, middle = nullptr, last = nullptr;
  torch::nn::GroupNorm groups = nullptr;
  torch::nn::BatchNorm1d batch = nullptr;
};
TORCH_MODULE(Mlp);

/// A block of a vision transformer. x: [tokens, B, 16].
struct VitBlockImpl : torch::nn::Module {
  VitBlockImpl() {
    before_attention = register_module("before_attention", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    attention = register_module("attention", torch::nn::MultiheadAttention(16, 4));
    before_layers = register_module("before_layers", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    up = register_module("up", torch::nn::Linear(16, 48));
    down = register_module("down", torch::nn::Linear(48, 16));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor normed = before_attention(x);
    const at::Tensor y = x + std::get<0>(attention(normed, normed, normed));
    return y + down(at::gelu(up(before_layers(y))));
  }

  torch::nn::LayerNorm before_attention = nullptr, before_layers = nullptr;
  torch::nn::MultiheadAttention attention = nullptr;
  torch::nn::Linear up = nullptr, down = nullptr;
};
TORCH_MODULE(VitBlock);

/// A small vision transformer for images of 8 x 8.
struct VitImpl : torch::nn::Module {
  explicit VitImpl(int num_blocks = 4) {
    patches = register_module("patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 4).stride(4)));
    token = register_parameter("token", at::randn({1, 1, 16}));
    positions = register_parameter("positions", at::randn({5, 1, 16}));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(VitBlock());
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    head = register_module("head", torch::nn::Linear(16, 5));
  }

  /// Returns the sum of the losses. images: [B, 1, 8, 8]; labels: int64 [B].
  at::Tensor forward(const at::Tensor& images, const at::Tensor& labels) {
    at::Tensor x = patches(images).flatten(2).permute({2, 0, 1});  // [4, B, 16]
    x = at::cat({token.expand({1, x.size(1), 16}), x}) + positions;
    for (const auto& block : *blocks) {
      x = block->as<VitBlockImpl>()->forward(x);
      if (after_block) after_block();
    }
    return at::cross_entropy_loss(head(norm(x[0])), labels, {}, at::Reduction::Sum);
  }

  std::function<void()> after_block;  // for tests
  torch::nn::Conv2d patches = nullptr;
  at::Tensor token, positions;
  torch::nn::ModuleList blocks = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(Vit);

}  // namespace meshtrain::testing

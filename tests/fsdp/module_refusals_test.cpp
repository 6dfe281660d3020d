// Modules that Fsdp refuses, and facts about modules that an optimizer needs.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>

#include "fsdp/fsdp.h"
#include "fsdp/module.h"
#include "mesh/device/aten.h"
#include "tests/fsdp/chain.h"
#include "tests/fsdp/modules.h"

namespace meshtrain {
namespace {

using testing::Hosts;
using testing::world_on;

FsdpOptions options_of(ShardingMode mode) {
  FsdpOptions options;
  options.mode = mode;
  options.shards = options.summed_over = world_on(Hosts::Refused);
  return options;
}

/// Returns the message of the std::logic_error that `call` throws; empty when it throws none.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

/// A language model of an embedding and a head only. `max_norm`: that of its embedding.
struct Words : torch::nn::Module {
  explicit Words(std::optional<double> max_norm)
      : embedding(
            register_module("embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 4).max_norm(max_norm)))),
        head(register_module("head", torch::nn::Linear(4, 7))) {}
  at::Tensor forward(const at::Tensor& tokens) { return head(embedding(tokens)).square().sum(); }

  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};

TEST(ModuleRefusals, AForwardThatWritesParameters) {
  for (const ShardingMode mode : {ShardingMode::NoShard, ShardingMode::ShardOptimizer, ShardingMode::FullShard}) {
    const at::Tensor tokens = at::arange(5, at::kLong);
    Words words(/*max_norm=*/std::nullopt), clipped(/*max_norm=*/0.1);
    const ModuleUnits units(words, {"head"}), clipped_units(clipped, {"embedding", "head"});
    Fsdp fsdp(units.specs(), options_of(mode)), clipped_fsdp(clipped_units.specs(), options_of(mode));
    EXPECT_EQ(refusal([&] { fsdp.run([&] { return words.forward(tokens); }); }), "");
    const std::string message = refusal([&] { clipped_fsdp.run([&] { return clipped.forward(tokens); }); });
    EXPECT_TRUE(message.starts_with("aten::embedding_renorm_ writes parameters of the unit embedding")) << message;
  }
}

TEST(ModuleRefusals, AResultWithoutAGradient) {
  for (const ShardingMode mode : {ShardingMode::NoShard, ShardingMode::FullShard}) {
    const at::Tensor tokens = at::arange(5, at::kLong);
    Words words(/*max_norm=*/std::nullopt), frozen(/*max_norm=*/std::nullopt);
    for (const at::Tensor& parameter : frozen.parameters()) parameter.set_requires_grad(false);
    const ModuleUnits units(words, {"embedding", "head"}), frozen_units(frozen, {"head"});
    Fsdp fsdp(units.specs(), options_of(mode)), frozen_fsdp(frozen_units.specs(), options_of(mode));
    const auto without_recording = [&] {
      const at::NoGradGuard no_grad;
      return words.forward(tokens);
    };
    const std::string message = refusal([&] { fsdp.run(without_recording); });
    EXPECT_TRUE(message.starts_with("the forward uses parameters of the unit embedding, but its result has no grad"))
        << message;
    EXPECT_EQ(refusal([&] { fsdp.run([&] { return words.forward(tokens).detach(); }); }), message);
    EXPECT_EQ(refusal([&] { fsdp.run([] { return at::zeros({}); }); }), "") << "no parameter was used";
    EXPECT_EQ(refusal([&] { frozen_fsdp.run([&] { return frozen.forward(tokens); }); }), "");
    const at::NoGradGuard evaluates;
    EXPECT_EQ(refusal([&] { fsdp.run([&] { return words.forward(tokens); }); }), "");
    fsdp.end_forward();
  }
}

TEST(ModuleRefusals, RequiresGradChangedAfterwards) {
  for (const bool frozen : {true, false}) {
    Words words(/*max_norm=*/std::nullopt);
    words.head->weight.set_requires_grad(!frozen);
    const ModuleUnits units(words, {"head"});
    Fsdp fsdp(units.specs(), options_of(ShardingMode::FullShard));
    fsdp.begin_step();
    words.head->weight.set_requires_grad(frozen);
    const std::string message = refusal([&] { fsdp.begin_step(); });
    EXPECT_TRUE(message.starts_with(std::string("head.weight was made ") + (frozen ? "trainable" : "frozen")))
        << message;
  }
}

TEST(ModuleRefusals, AModuleWithoutParameters) {
  torch::nn::Module empty;
  EXPECT_THROW(ModuleUnits(empty, {}), std::invalid_argument);
}

TEST(ModuleRefusals, UnitsThatShareParameters) {
  testing::Vit vit;
  const auto refused = [&](const std::vector<std::string>& units) {
    return refusal([&] { ModuleUnits(*vit, units); });
  };
  EXPECT_EQ(refused({"head", "head"}), "unit head: its parameters belong to the unit head already: leave it out");
  EXPECT_EQ(refused({"blocks", "head", "blocks.*"}),
            "unit blocks.0: its parameters belong to the unit blocks already: leave it out");
}

TEST(ModuleUnits, RowsOfAnEmbeddingBelongToTokens) {
  Words words(/*max_norm=*/std::nullopt);
  const ModuleUnits units(words, {"head"});
  for (const Parameter& parameter : units.parameters()) {
    EXPECT_EQ(parameter.of_tokens, parameter.name == "embedding.weight") << parameter.name;
  }
}

}  // namespace
}  // namespace meshtrain

// The first backward of a step writes gradients and the others add to them. The bits are those of zeros to which all
// backwards add, whatever the memory held before, and only ranges that no layer writes are set to zero.

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <string>

#include "mesh/device/aten.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/support/world.h"
#include "tests/support/zero_recorder.h"

namespace meshtrain::testing {
namespace {

struct Case {
  std::string mode = "no_shard";
  int64_t micro_batches = 1;
  bool tied = false;
  std::string precision = "fp32";
  std::string recompute = "none";
  std::string frozen = {};
  std::string family = "llama";
  int64_t tp = 1, cp = 1;
  bool no_sync = false;

  std::string describe() const {
    return mode + (no_sync ? " no_sync " : " ") + std::to_string(micro_batches) + (tied ? " tied " : " ") + precision +
           " " + recompute + " frozen: " + frozen + " " + family + " tp=" + std::to_string(tp) +
           " cp=" + std::to_string(cp);
  }
};

Recipe recipe_of(const Case& each) {
  Recipe recipe;
  ModelShape& shape = recipe.model.shape;
  shape.family = each.family;
  shape.hidden_size = 32;
  shape.intermediate_size = 48;
  shape.num_hidden_layers = 2;
  shape.num_attention_heads = 8;
  shape.num_key_value_heads = 4;
  shape.head_dim = 8;
  shape.vocab_size = 61;  // the last ranks of tp have fewer rows
  shape.tie_word_embeddings = each.tied;
  shape.qkv_bias = each.family == "qwen2";
  const int64_t dp = world().size() / each.tp / each.cp;
  recipe.parallel.mesh = {{"dp", dp}, {"tp", each.tp}, {"cp", each.cp}};
  recipe.parallel.sequence_parallel = each.tp > 1 ? "on" : "off";
  if (each.cp > 1) recipe.parallel.context = {"ring", "zigzag"};
  recipe.parallel.fsdp.mode = each.mode;
  recipe.parallel.fsdp.options.accumulate_unsharded = each.no_sync;
  if (each.mode == "hybrid_shard") recipe.parallel.fsdp.shard_size = dp * each.cp > 2 ? 2 : 1;
  recipe.train.sequence_length = 16;
  recipe.train.micro_batch = 2;
  recipe.train.global_batch = dp * 2 * each.micro_batches;
  recipe.train.precision = each.precision;
  recipe.train.activation_checkpointing = {each.recompute, 1};
  if (!each.frozen.empty()) recipe.train.freeze = {each.frozen};
  return recipe;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* mode : {"no_shard", "shard_optimizer", "shard_grad_op", "full_shard", "hybrid_shard"}) {
    for (const int64_t micro_batches : {1, 3}) {
      for (const bool tied : {false, true}) all.push_back({mode, micro_batches, tied});
    }
    all.push_back({.mode = mode, .micro_batches = 3, .precision = "bf16_mixed", .family = "qwen2"});
  }
  for (const char* mode : {"shard_grad_op", "full_shard", "hybrid_shard"}) {
    all.push_back({.mode = mode, .micro_batches = 3, .tied = true, .precision = "bf16_mixed", .no_sync = true});
  }
  for (const char* mode : {"no_shard", "full_shard"}) {
    for (const char* precision : {"bf16", "fp16_mixed", "fp64"}) {
      all.push_back({.mode = mode, .micro_batches = 3, .precision = precision, .family = "qwen3"});
    }
    for (const char* recompute : {"full", "selective"}) {
      all.push_back({.mode = mode, .micro_batches = 3, .tied = true, .recompute = recompute, .family = "qwen2"});
    }
    for (const char* frozen : {"*.k_proj.*", "model.embed_tokens.*", "*.layers.0.*"}) {
      all.push_back({.mode = mode, .micro_batches = 3, .frozen = frozen});
    }
  }
  const int64_t n = world().size();
  if (n > 1) {
    all.push_back({.micro_batches = 3, .tied = true, .family = "qwen2", .tp = n});
    all.push_back({.micro_batches = 1, .precision = "bf16_mixed", .tp = n});
    all.push_back({.mode = "full_shard", .micro_batches = 3, .cp = n});
    all.push_back({.mode = "full_shard", .micro_batches = 3, .tied = true, .tp = 2, .cp = n / 2});
  }
  return all;
}

/// Fills all memory of gradients, and its padding, with NaN.
void poison(const Fsdp& fsdp) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const Arena& memory = fsdp.memory().gradients;
  for (size_t unit = 0; unit < fsdp.units().size(); ++unit) {
    memory.lend(unit);
    for (const FlatBuffer& buffer : fsdp.units()[unit].buffers()) {
      if (!buffer.trainable()) continue;
      at::Tensor(buffer.gradients()).fill_(kNaN);
      at::Tensor(buffer.shard_gradients()).fill_(kNaN);
    }
    memory.take_back(unit);
  }
  world().barrier();
}

/// The ranges of the flat gradients that were set to zero.
struct Zeroed {
  int64_t elements = 0;
  bool of_written = false;  ///< true: one of them is written by a layer
};

Zeroed zeroed_in(const Fsdp& fsdp, const std::vector<at::Tensor>& tensors) {
  Zeroed zeroed;
  for (const FlatBuffer* buffer : trainable_buffers(fsdp.units())) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.is_alias_of(buffer->gradients())) continue;
      zeroed.elements += tensor.numel();
      const int64_t begin = tensor.storage_offset(), end = begin + tensor.numel();
      for (const auto& [parameter, offset, numel] : buffer->segments()) {
        // Rows beyond the vocabulary are padding.
        const int64_t written = parameter->of_tokens ? parameter->box.size[0] * parameter->shape[1] : numel;
        const bool any = begin < offset + written && offset < end;
        zeroed.of_written = zeroed.of_written || (any && parameter->written_by_layer);
      }
    }
  }
  return zeroed;
}

using Gradients = std::map<std::string, at::Tensor>;

/// Makes two steps and returns gradients, losses and norms of each. `writes`: layers write; otherwise every buffer is
/// set to zero before, and all layers add.
std::vector<Gradients> train_two_steps(const Case& each, bool writes, Zeroed& zeroed) {
  const Recipe recipe = recipe_of(each);
  const DeviceMesh mesh(MeshLayout({{"dp", recipe.parallel.mesh.at("dp")}, {"cp", each.cp}, {"tp", each.tp}}), world());
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  if (!writes) {
    for (Parameter* parameter : trainer.model().parameters()) parameter->written_by_layer = false;
  }
  at::manual_seed(7);
  std::vector<Gradients> seen;
  for (int step = 0; step < 2; ++step) {
    const StepBatch batch = made_step(trainer.options(), trainer.layout(), each.micro_batches, at::kCPU);
    const int64_t num_counted = trainer.count_tokens(batch);
    if (writes) poison(trainer.fsdp());
    const ZeroRecorder recorder;
    const StepOutcome outcome = trainer.compute_gradients(batch, num_counted, {});
    zeroed = zeroed_in(trainer.fsdp(), recorder.tensors());
    Gradients gradients = {{"outcome", outcome.values.clone()}};
    trainer.fsdp().visit_gradients(
        [&](const Parameter& parameter) { gradients[parameter.name] = parameter.tensor.clone(); });
    trainer.update(outcome, 1e-3);
    seen.push_back(std::move(gradients));
  }
  return seen;
}

TEST(FirstWrite, GivesTheBitsOfZerosThatAllAddTo) {
  if (world().size() == 8) GTEST_SKIP() << "4 ranks have shown it";
  for (const Case& each : cases()) {
    Zeroed zeroed, all_zeroed;
    const std::vector<Gradients> seen = train_two_steps(each, /*writes=*/true, zeroed);
    const std::vector<Gradients> wanted = train_two_steps(each, /*writes=*/false, all_zeroed);
    for (size_t step = 0; step < wanted.size(); ++step) {
      ASSERT_EQ(seen[step].size(), wanted[step].size());
      for (const auto& [name, gradient] : wanted[step]) {
        EXPECT_TRUE(at::equal(seen[step].at(name), gradient)) << name << " of step " << step << ", " << each.describe();
      }
    }
    EXPECT_FALSE(zeroed.of_written) << each.describe();
    EXPECT_LT(zeroed.elements, all_zeroed.elements / 2) << each.describe();
  }
}

}  // namespace
}  // namespace meshtrain::testing

#include "runtime/program/forecast/remedies.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mesh/base/size_text.h"
#include "runtime/program/recipe/load.h"
#include "tests/support/messages.h"

namespace meshtrain {
namespace {

using testing::has;

/// A model of 8 layers whose weights and activations both count.
constexpr const char* kRecipe = R"(name: large
model:
  family: llama
  hidden_size: 256
  intermediate_size: 1024
  num_hidden_layers: 8
  num_attention_heads: 4
  num_key_value_heads: 4
  vocab_size: 512
data: {tokens: tokens.bin, dtype: uint16}
train: {sequence_length: 512, global_batch: 16, micro_batch: 2, steps: 1}
parallel: {fsdp: {mode: no_shard}}
optimizer: {learning_rate: 1.0e-3}
)";

std::string remedies(const std::vector<std::string>& settings, int64_t dp, std::optional<int64_t> memory = {}) {
  const Recipe recipe = with_overrides(parse_recipe(kRecipe), settings);
  const MeshLayout layout = MeshLayout::fit({{kDataAxis, dp}}, recipe.parallel.order, dp);
  ForecastRequest request = forecast_request(recipe, dp, dp, nullptr);
  request.memory = memory;
  return memory_remedies(recipe, layout, request);
}

TEST(MemoryRemedies, NameInOrderWhatHelpsWithItsBytes) {
  const std::string text = remedies({}, 2);
  size_t at = 0;
  for (const char* part : {"a rank needs less with parallel.fsdp.mode=full_shard (",
                           ", more ranks, dp=4 with parallel.fsdp.mode=full_shard (", ", train.precision=bf16_mixed (",
                           ", train.activation_checkpointing.mode=full (", ", train.micro_batch=1 (",
                           ", more ranks, cp=2 (", ", more ranks, tp=2 (", "; with all these settings "}) {
    const size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " is not in its place in\n" << text;
    at = found;
  }
  EXPECT_FALSE(has(text, "which fits")) << "memory is not known: " << text;
}

TEST(MemoryRemedies, NameUnitsOfSublayersWhereUnitsTakeMemoryInTurns) {
  const std::string setting = "parallel.fsdp.unit=sublayer (";
  const std::vector<std::string> few = {"parallel.fsdp.mode=shard_grad_op", "model.intermediate_size=8192",
                                        "model.num_hidden_layers=2", "train.micro_batch=1"};
  EXPECT_TRUE(has(remedies(few, 2), setting)) << remedies(few, 2);
  std::vector<std::string> several = few;
  several.push_back("parallel.fsdp.unit_layers=2");
  EXPECT_FALSE(has(remedies(several, 2), setting)) << "units of two blocks have no sublayers";
  EXPECT_FALSE(has(remedies({}, 2), setting)) << "no_shard keeps all gradients";
}

TEST(MemoryRemedies, NameOffloadOnGpus) {
  const std::string setting = "parallel.fsdp.offload={to: host} (";
  EXPECT_TRUE(has(remedies({"device=cuda"}, 1), setting)) << remedies({"device=cuda"}, 1);
  EXPECT_FALSE(has(remedies({"device=cpu"}, 1), setting)) << "shards are in host memory anyway";
}

TEST(MemoryRemedies, LeaveOutWhatDoesNotHelp) {
  const std::string one = remedies({"parallel.fsdp.mode=auto"}, 1);
  EXPECT_FALSE(has(one, "less with parallel.fsdp.mode=full_shard (")) << "one rank has nobody to shard with: " << one;
  EXPECT_TRUE(has(one, "with more ranks, dp=2 with ")) << one;

  const std::vector<std::string> all = {"parallel.fsdp.mode=full_shard", "train.precision=bf16_mixed",
                                        "train.activation_checkpointing.mode=full", "train.micro_batch=1"};
  const std::string none = remedies(all, 4);
  for (const std::string& setting : all) EXPECT_FALSE(has(none, setting)) << none;
  EXPECT_FALSE(has(none, "all these settings")) << none;
}

TEST(MemoryRemedies, SayWhatFits) {
  const std::string text = remedies({}, 4, int64_t{1} << 40);
  EXPECT_TRUE(has(text, ", which fits), more ranks")) << text;
  EXPECT_FALSE(has(remedies({}, 4, 1), "which fits"));
}

}  // namespace
}  // namespace meshtrain

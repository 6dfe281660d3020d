// Public configurations of other trainers, as recipes that `meshtrain recipe --from` writes.

#include <filesystem>
#include <map>
#include <sstream>

#include "tests/support/files.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// A configuration in tests/fixtures/foreign, and parts of the recipe that it becomes. The files have the keys and
/// values of public ones: of accelerate's examples (config_yaml_templates, torch_native_parallelism), of transformers'
/// tests, of DeepSpeedExamples and of Megatron-LM's examples.
struct Foreign {
  std::string file;
  int ranks;  // of its mesh
  Words in_recipe;
  Words not_converted;
};

std::ostream& operator<<(std::ostream& stream, const Foreign& foreign) {
  return stream << foreign.file;
}

const std::vector<Foreign> kConfigurations = {
    {"accelerate_nd.yaml", 8, {"mesh: {dp: 2, cp: 4, tp: 1}", "precision: bf16_mixed"}, {}},
    {"accelerate_tp_hsdp.yaml", 8, {"mesh: {dp: 4, cp: 1, tp: 2}", "mode: hybrid_shard", "shard_size: 2"}, {}},
    {"accelerate_cp.yaml", 8, {"mesh: {dp: 1, cp: 8, tp: 1}", "mode: full"}, {}},
    {"accelerate_fsdp.yaml", 2, {"mesh: {dp: 2, cp: 1, tp: 1}", "mode: full_shard"}, {}},
    {"accelerate_multi_node.yaml", 8, {"mode: no_shard"}, {}},
    {"deepspeed_transformers_zero3.json",
     1,
     {"precision: fp16_mixed", "growth_interval: 1000", "betas: [0.8, 0.999]", "to: host", "mode: full_shard"},
     {"fp16.hysteresis: 2: meshtrain shrinks the scale"}},
    {"deepspeed_transformers_zero2.json",
     1,
     {"mode: shard_grad_op", "clip_norm: 1  # the Trainer's default", "first_ratio: 0\n"},
     {}},
    {"deepspeed_megatron_zero2.json", 1, {"global_batch: 16", "learning_rate: 0.00015"}, {"activation_checkpointing"}},
    {"deepspeed_megatron_zero3.json", 1, {"micro_batch: 8", "initial: 1024"}, {}},
    {"deepspeed_cifar.json", 1, {"warmup_steps: 1000", "clip_norm: 1", "initial: 32768"}, {}},
    {"megatron_llama3_8b.txt",
     1,
     {"family: llama", "intermediate_size: 14336", "num_key_value_heads: 8", "rope_theta: 1000000",
      "vocab_size: 128256", "mode: shard_optimizer", "reduce_dtype: bf16", "mesh: {dp: auto, cp: 1, tp: 1}",
      "global_batch: 128", "steps: 15258789", "total_steps: 15228271", "warmup_steps: 30517", "decay: matrices",
      "learning_rate: 0.00015", "{pattern: lm_head.weight, learning_rate_factor: 3.33", "time_limit: 14100",
      "every: 1000"},
     {"--split: ", "--fp8-format: hybrid: FP8 is not supported", "--apply-layernorm-1p: true"}},
    {"megatron_gpt3_175b.txt",
     8,
     {"mesh: {pp: 16, dp: auto, cp: 1, tp: 8}", "precision: fp16_mixed", "initial: 4294967296",
      "intermediate_size: 49152", "mlp_bias: true", "tie_word_embeddings: true", "warmup_steps: 430",
      "sequence_parallel: \"off\"", "head_dim: 128", "global_batch: [{until: 126316544, size: 16}, {until: "},
     {"--position-embedding-type: absent, which is learned_absolute", "--swiglu is absent",
      "--vocab-file: gpt2-vocab.json", "--normalization: absent, which is LayerNorm",
      "--hidden-dropout: absent, which is 0.1"}}};

class FromForeign : public ::testing::TestWithParam<Foreign> {
 protected:
  /// Returns what the recipe still needs, by key.
  static std::vector<std::string> needed_keys(const std::string& recipe) {
    std::vector<std::string> keys;
    const size_t begin = recipe.find("# Still to be given");
    if (begin == std::string::npos) return keys;
    std::istringstream lines(recipe.substr(begin));
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line) && line.starts_with("#   ")) keys.push_back(line.substr(4, line.find(": ") - 4));
    return keys;
  }

  const ScratchFolder folder_;
};

TEST_P(FromForeign, IsARecipeThatPassesItsCheckOnceWhatIsMissingIsGiven) {
  const std::string file = source_folder() + "/tests/fixtures/foreign/" + GetParam().file;
  const fs::path recipe = folder_.path() / "recipe.yaml";
  const Ending converted = run_meshtrain({"recipe", "--from", file, "--out", recipe.string()});
  const std::string text = content(recipe);
  ASSERT_EQ(converted.status, has(text, "numbers change without it") ? 1 : 0) << converted.err;
  EXPECT_EQ(run_meshtrain({"recipe", "--from", file}).out, text);
  for (const std::string& part : GetParam().in_recipe) EXPECT_TRUE(has(text, part)) << part << " is not in\n" << text;
  const size_t not_converted = std::min(text.find("# Not converted"), text.size());
  for (const std::string& part : GetParam().not_converted) {
    EXPECT_TRUE(has(text.substr(not_converted), part)) << part << " is not in\n" << text;
  }

  const std::vector<std::string> missing = needed_keys(text);
  ASSERT_FALSE(missing.empty()) << "tokens at least";
  const Ending refused = run_meshtrain({"train", recipe.string(), "--check"});
  EXPECT_EQ(refused.status, 2) << "the check says what is missing";
  EXPECT_TRUE(has(refused.err, "must be given") || has(refused.err, "train.global_batch")) << refused.err;

  write_ids<uint16_t>(folder_.path() / "tokens.bin", std::vector<int64_t>(8200, 3));
  const std::map<std::string, std::string> values = {{"model.hf", source_folder() + "/tests/fixtures/llama"},
                                                     {"data.tokens", (folder_.path() / "tokens.bin").string()},
                                                     {"train.sequence_length", "32"},
                                                     {"train.global_batch", "64"},
                                                     {"train.micro_batch", "1"},
                                                     {"train.steps", "5000"},
                                                     {"optimizer.learning_rate", "1e-3"},
                                                     {"train.precision", "bf16_mixed"},
                                                     {"train.clip_norm", "1"},
                                                     {"optimizer.betas", "[0.9, 0.999]"},
                                                     {"optimizer.eps", "1e-8"},
                                                     {"optimizer.weight_decay", "0"},
                                                     {"optimizer.decay", "matrices"},
                                                     {"schedule.name", "cosine"},
                                                     {"schedule.warmup_steps", "10"},
                                                     {"model.vocab_size", "256"}};
  Words words = {"train", recipe.string(), "--check"};
  if (has(text, "checkpoint:\n")) words.insert(words.end(), {"--set", "checkpoint.every=0"});  // whatever the disk has
  if (has(text, "dp: auto")) words.insert(words.end(), {"--set", "parallel.mesh.dp=1"});
  // A check runs a step of each stage: of sixteen it takes a minute.
  if (has(text, "pp: 16")) words.insert(words.end(), {"--set", "parallel.mesh.pp=2"});
  for (const std::string& key : missing) {
    ASSERT_TRUE(values.contains(key)) << key << " in\n" << text;
    words.insert(words.end(), {"--set", key + "=" + values.at(key)});
  }
  const Ending passed = run_meshtrain(words);
  EXPECT_EQ(passed.status, 0) << passed.err << text;
  EXPECT_TRUE(has(passed.out, "fits mesh ")) << passed.out;
}

INSTANTIATE_TEST_SUITE_P(Public, FromForeign, ::testing::ValuesIn(kConfigurations),
                         [](const auto& each) { return fs::path(each.param.file).stem().string(); });

}  // namespace
}  // namespace meshtrain::testing

// Configurations with the values of public ones become recipes that are complete once what they leave open is given.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

/// A file of tests/fixtures/foreign, the mesh and parts of the recipe that it becomes, and parts of what is not
/// converted.
struct ForeignFile {
  std::string file, mesh;
  Words in_recipe, not_converted;
};

std::ostream& operator<<(std::ostream& stream, const ForeignFile& foreign) {
  return stream << foreign.file;
}

const std::vector<ForeignFile> kFiles = {
    {"axolotl_qwen3_8b_nd.yaml",
     "dp=2,cp=2,tp=2",
     {"mode: full_shard", "algorithm: all_gather", "global_batch: 2", "learning_rate: 2e-06", "name: constant",
      "precision: bf16_mixed", "reduce_dtype: bf16", "sequence_length: 8192"},
     {"schedule.warmup_steps: 0.1 x train.steps", "data.documents: ", "model.hf: the folder of Qwen/Qwen3-8B"}},
    {"axolotl_llama3_8b_hsdp_tp.yaml",
     "dp=8,tp=2",
     {"mode: hybrid_shard", "shard_size: 4", "global_batch: 8", "sequence_length: 2048"},
     {"special_tokens: {pad_token: "}},
    {"axolotl_llama3_8b_alst.yaml",
     "cp=8",
     {"sequence_length: 500000", "offload_activations: true", "mode: full", "warmup_steps: 100", "name: cosine"},
     {"optimizer: adamw_torch_8bit: its state has 8 bits", "tiled_mlp: true"}},
    {"axolotl_llama3_8b_cp8.yaml",
     "cp=8",
     {"algorithm: ring", "layout: contiguous", "sequence_length: 32768", "global_batch: 1"},
     {}},
    {"axolotl_llama2_7b_lora.yaml",
     "dp=8",
     {"rank: 32", "alpha: 16", "targets: [all-linear]", "steps: 500", "warmup_steps: 10", "mode: no_shard",
      "residual_dtype: fp32"},
     {"load_in_8bit: true: QLoRA", "train.global_batch: 8 x the ranks of dp", "optimizer: adamw_bnb_8bit"}},
    {"automodel_llama3_70b.yaml",
     "dp=32,cp=2",
     {"global_batch: 128", "precision: bf16", "betas: [0.9, 0.95]", "weight_decay: 0.1", "timeout: 3600",
      "mode: full\n", "sequence_length: 8192", "seed: 42"},
     {}},
    {"automodel_qwen3_30b_ep8.yaml",
     "dp=8,ep=8",
     {"init: random", "global_batch: 512", "micro_batch: 4", "learning_rate: 0.0001", "no_sync: true"},
     {"model.backend.fake_balanced_gate: true: experts get"}},
    {"automodel_llama3_1b_packed_cp2.yaml",
     "cp=2",
     {"sequence_length: 1024", "steps: 10", "seed: 1111", "shuffle: true"},
     {"data.documents: ", "validation_dataset"}},
    {"automodel_qwen3_32b_cp2.yaml", "dp=4,cp=2", {"micro_batch: 2", "global_batch: 64", "steps: 100"}, {}},
    {"automodel_qwen3_4b_autocast.yaml",
     "dp=4,cp=2",
     {"precision: bf16_mixed", "residual_dtype: fp32", "every: 500", "betas: [0.9, 0.95]"},
     {"optimizer.master_weight_bits: 24"}},
    {"olmo_core_7b_long.yaml",
     "dp=32,cp=8",
     {"sequence_length: 65536", "global_batch: 64", "steps: 11920", "mode: hybrid_shard",
      "shard_size: 8  # shard_degree x cp", "window: 128", "sigma: 6", "z_loss: 1e-05", "layout: contiguous",
      "groups: [{pattern: model.embed_tokens.weight, weight_decay: 0.0}]", "warmup_steps: 200", "name: linear"},
     {"float8_config"}},
    {"olmo_core_32b_long.yaml",
     "dp=128,cp=8",
     {"global_batch: 128", "shard_size: 64", "mode: hybrid_shard", "mode: selective", "every: 1000"},
     {"activation_memory_budget"}},
    {"olmo_core_7b_pretrain.yaml",
     "dp=256",
     {"global_batch: 512", "micro_batch: 2", "steps: 1192092", "name: cosine", "min_ratio: 0.1", "warmup_steps: 2000"},
     {}},
    {"olmo_core_32b_pretrain.yaml", "dp=1024", {"global_batch: 1024", "micro_batch: 1"}, {"train.steps: "}},
    {"olmo_core_7b_midtrain.yaml", "dp=64", {"mode: full_shard", "steps: 47684", "global_batch: 256"}, {}},
    {"titan_8b.txt",
     "dp=8",
     {"hidden_size: 4096", "micro_batch: 2", "learning_rate: 0.0003", "name: linear", "mode: selective"},
     {"train.global_batch: 2 x the ranks of dp", "compile"}},
    {"titan_70b.txt", "dp=32,tp=8", {"global_batch: 512", "mode: full\n", "num_hidden_layers: 80"}, {}},
    {"titan_405b.txt",
     "pp=8,dp=8,tp=8",
     {"schedule: interleaved", "stages_per_rank: 2", "global_batch: 256", "micro_batch: 1", "warmup_steps: 600"},
     {"Float8LinearConverter: FP8 is not supported"}},
    {"titan_debug_fsdp2_tp2_cp2.txt",
     "dp=2,cp=2,tp=2",
     {"vocab_size: 2048", "global_batch: 16", "name: wsd", "decay_steps: 8", "mode: full_shard"},
     {}},
    {"titan_debug_hsdp.txt",
     "dp=4,cp=2",
     {"mode: hybrid_shard", "shard_size: 4", "warmup_steps: 1", "algorithm: all_gather"},
     {"training.seq_lem: 1024: a recipe has no such setting; did you mean training.seq_len?"}},
};

class ForeignFiles : public ::testing::TestWithParam<ForeignFile> {};

/// Returns the keys that the comments of a recipe list as still to be given.
Words needed_keys(const std::string& recipe) {
  Words keys;
  std::istringstream lines(recipe.substr(std::min(recipe.find("# Still to be given"), recipe.size())));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line.starts_with("#   ")) keys.push_back(line.substr(4, line.find(": ") - 4));
  return keys;
}

TEST_P(ForeignFiles, BecomeRecipesThatAreCompleteOnceTheRestIsGiven) {
  const std::filesystem::path fixtures = source_folder() + "/tests/fixtures";
  const std::string text = recipe_from(fixtures / "foreign" / GetParam().file).text;
  const auto contains = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  for (const std::string& part : GetParam().in_recipe) EXPECT_TRUE(contains(part)) << part << " is not in\n" << text;
  for (const std::string& part : GetParam().not_converted) {
    EXPECT_TRUE(contains(part)) << part << " is not in\n" << text;
  }
  const ScratchFolder folder;
  write_file(folder.path() / "recipe.yaml", text);
  const bool has_experts = contains("ep: 8");
  const std::map<std::string, std::string> values = {
      {"model.hf", source_folder() + "/tests/fixtures/" + (has_experts ? "qwen3_moe" : "llama")},
      {"data.tokens", "tokens.bin"},
      {"data.documents", "3"},
      {"train.global_batch", "64"},
      {"train.steps", "5000"},
      {"schedule.warmup_steps", "10"},
      {"parallel.fsdp.shard_size", "8"},
      {"adapter.targets", "[all-linear]"}};
  Words overrides;
  for (const std::string& key : needed_keys(text)) {
    ASSERT_TRUE(values.contains(key)) << key << " in\n" << text;
    overrides.push_back(key + "=" + values.at(key));
  }
  if (contains("  hf:") || std::ranges::count(needed_keys(text), "model.hf") > 0) {
    overrides.emplace_back("model.init=random");
    if (has_experts) overrides.emplace_back("parallel.mesh.ep=4");  // as many experts as that small model has
  }
  if (contains("dp: auto")) {
    const size_t dp = GetParam().mesh.find("dp=");
    overrides.push_back("parallel.mesh.dp=" +
                        (dp == std::string::npos ? "1" : std::to_string(std::stoi(GetParam().mesh.substr(dp + 3)))));
  }
  const Recipe recipe = load_recipe(folder.path() / "recipe.yaml", overrides, "");
  const int64_t ranks = ranks_of(recipe.parallel.mesh);
  const MeshLayout layout = MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, ranks);
  for (const auto& [axis, size] : parse_mesh(GetParam().mesh)) {
    if (axis != "ep") {
      EXPECT_EQ(layout.size(axis), size) << axis;
    }
  }
  EXPECT_NO_THROW(resolve(recipe, layout)) << text;
}

INSTANTIATE_TEST_SUITE_P(Public, ForeignFiles, ::testing::ValuesIn(kFiles),
                         [](const auto& each) { return std::filesystem::path(each.param.file).stem().string(); });

// A key that nobody has heard of, at each depth of each file, is listed by its path.
TEST_P(ForeignFiles, NoUnknownKeyIsDroppedSilently) {
  const std::filesystem::path file = source_folder() + "/tests/fixtures/foreign/" + GetParam().file;
  const std::string text = content(file);
  const ScratchFolder folder;
  const auto lists = [&](const std::string& changed, const std::string& path) {
    write_file(folder.path() / GetParam().file, changed);
    const std::string recipe = recipe_from(folder.path() / GetParam().file).text;
    EXPECT_NE(recipe.find(path + ": 17: a recipe has no such setting"), std::string::npos) << path << "\n" << recipe;
  };
  if (file.extension() == ".txt") {
    lists(text + " --zebra 17\n", "zebra");
    lists(text + " --parallelism.zebra=17\n", "parallelism.zebra");
    lists(text + " --training.zebra=17\n", "training.zebra");
    return;
  }
  lists(text + "\nzebra: 17\n", "zebra");
  std::istringstream lines(text);
  std::string before;
  for (std::string line; std::getline(lines, line);) {
    before += line + "\n";
    const bool is_map = !line.empty() && line[0] != ' ' && line.ends_with(":");
    const std::string key = line.substr(0, line.find(':'));
    if (!is_map || key == "datasets" || key == "special_tokens" || key == "resume_from_checkpoint" ||
        key == "wandb_project") {
      continue;
    }
    lists(before + "  zebra: 17\n" + text.substr(before.size()), key + ".zebra");
  }
}

// A group of other parameters is listed, and does not become the embedding's.
TEST(ForeignOlmoCore, GroupsOfOtherParametersAreListed) {
  const ScratchFolder folder;
  std::string text = content(source_folder() + "/tests/fixtures/foreign/olmo_core_7b_long.yaml");
  text.replace(text.find("[embeddings.weight]"), 19, "[lm_head.w_out.weight]");
  write_file(folder.path() / "a.yaml", text);
  const std::string recipe = recipe_from(folder.path() / "a.yaml").text;
  EXPECT_EQ(recipe.find("groups:"), std::string::npos) << recipe;
  EXPECT_NE(recipe.find("train_module.optim.group_overrides: optimizer.groups is similar"), std::string::npos);
}

TEST(ForeignMegatron, ABatchThatGrowsAndTheFirstBlocksAreConverted) {
  const ScratchFolder folder;
  write_file(folder.path() / "a.txt",
             "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --global-batch-size 8 "
             "--train-iters 10 --rampup-batch-size 2 2 10 --recompute-granularity full --recompute-method block "
             "--recompute-num-layers 3");
  const std::string recipe = recipe_from(folder.path() / "a.txt").text;
  // 10 / 3 samples with each size: the first step that begins after 4 has the next.
  EXPECT_NE(recipe.find("[{until: 128, size: 2}, {until: 224, size: 4}, {until: 320, size: 6}, {size: 8}]"),
            std::string::npos)
      << recipe;
  EXPECT_NE(recipe.find("first: 3"), std::string::npos) << recipe;
}

}  // namespace
}  // namespace meshtrain::testing

// `meshtrain recipe` as its users run it: keys explained, and public configurations of other trainers as recipes.

#include <filesystem>
#include <map>
#include <sstream>

#include "tests/support/files.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

TEST(RecipeCommand, ExplainsAKeyOrListsAll) {
  const Ending one = run_meshtrain({"recipe", "--explain", "train.clip_norm"});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.out, "train.clip_norm: a number\n  default: 1\n  at least 0\n  0: no clipping\n");
  const Ending all = run_meshtrain({"recipe", "--explain"});
  EXPECT_EQ(all.status, 0) << all.err;
  EXPECT_TRUE(has(all.out, "\nschedule.total_steps ")) << all.out;
  EXPECT_TRUE(has(all.out, "\ntrain.precision ")) << all.out;
  EXPECT_EQ(only_complaint(run_meshtrain({"recipe", "--explain", "train.grad_clip"})),
            "--explain train.grad_clip: unknown key; here it is train.clip_norm");
  EXPECT_EQ(only_complaint(run_meshtrain({"recipe"})),
            "give --explain [KEY] or --from FILE: see meshtrain recipe --help");
}

/// A configuration in tests/fixtures/foreign, and parts of the recipe that it becomes. The files have the keys and
/// values of public ones: of torchtitan's train_configs and configs, of accelerate's examples (config_yaml_templates,
/// torch_native_parallelism), of transformers' tests and of DeepSpeedExamples.
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
    {"torchtitan_llama3_8b.toml",
     1,
     {"hidden_size: 4096", "learning_rate: 3e-04", "steps: 1000", "precision: bf16_mixed", "mode: selective",
      "tensorboard: true"},
     {"model.tokenizer_path"}},
    {"torchtitan_debug_model.toml",
     1,
     {"name: linear", "every: 2", "mode: full", "micro_batch: 8", "hidden_size: 256"},
     {"model.hf_assets_path"}},
    {"torchtitan_llama3_70b.toml", 8, {"mesh: {dp: auto, cp: 1, tp: 8}", "num_hidden_layers: 80"}, {}},
    {"torchtitan_llama3_405b.toml", 8, {"num_hidden_layers: 126", "warmup_steps: 600"}, {"model.converters: float8"}},
    {"torchtitan_llama3_8b_8xb200.toml",
     8,
     {"precision: bf16\n", "global_batch: 24", "mesh: {dp: 8, cp: 1, tp: 1}"},
     {"optimizer.early_step_in_backward: true", "compile.enable: true"}},
    {"accelerate_nd.yaml", 8, {"mesh: {dp: 2, cp: 4, tp: 1}", "precision: bf16_mixed"}, {}},
    {"accelerate_tp_hsdp.yaml", 8, {"mesh: {dp: 4, cp: 1, tp: 2}", "mode: hybrid_shard", "shard_size: 2"}, {}},
    {"accelerate_cp.yaml", 8, {"mesh: {dp: 1, cp: 8, tp: 1}", "mode: full"}, {}},
    {"accelerate_fsdp.yaml", 2, {"mesh: {dp: 2, cp: 1, tp: 1}", "mode: full_shard"}, {}},
    {"accelerate_multi_node.yaml", 8, {"mode: no_shard"}, {}},
    {"deepspeed_transformers_zero3.json",
     1,
     {"precision: fp16_mixed", "growth_interval: 1000", "betas: [0.8, 0.999]", "to: host", "mode: full_shard"},
     {"fp16.hysteresis: 2"}},
    {"deepspeed_transformers_zero2.json",
     1,
     {"mode: shard_grad_op"},
     {"train_batch_size: auto", "optimizer.params.lr"}},
    {"deepspeed_megatron_zero2.json", 1, {"global_batch: 16", "learning_rate: 0.00015"}, {"activation_checkpointing"}},
    {"deepspeed_megatron_zero3.json", 1, {"micro_batch: 8", "initial: 1024"}, {}},
    {"deepspeed_cifar.json", 1, {"warmup_steps: 1000", "clip_norm: 1", "initial: 32768"}, {}}};

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
  ASSERT_EQ(converted.status, 0) << converted.err;
  const std::string text = content(recipe);
  EXPECT_EQ(run_meshtrain({"recipe", "--from", file}).out, text);
  for (const std::string& part : GetParam().in_recipe) EXPECT_TRUE(has(text, part)) << part << " is not in\n" << text;
  const size_t not_converted = std::min(text.find("# Not converted:"), text.size());
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
                                                     {"optimizer.learning_rate", "1e-3"}};
  Words words = {"train", recipe.string(), "--check"};
  if (has(text, "dp: auto")) words.insert(words.end(), {"--set", "parallel.mesh.dp=1"});
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

/// Returns the recipe made of a configuration; its name says which tool it belongs to.
std::string converted(const std::string& name, const std::string& configuration) {
  const ScratchFolder folder;
  write_file(folder.path() / name, configuration);
  const Ending ending = run_meshtrain({"recipe", "--from", (folder.path() / name).string()});
  EXPECT_EQ(ending.status, 0) << ending.err;
  return ending.out;
}

struct Part {
  const char* name;
  const char* configuration;
  Words in_recipe;
  Words not_in_recipe;
};

TEST(RecipeCommand, ConvertsOrListsEveryKey) {
  const std::string part = "  name: adamw\n";
  for (
      const Part& each : std::vector<Part>{
          {"a.json",
           R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8, "zebra": 1}})",
           {"zero_optimization.zero_hpz_partition_size: 8: parallel.fsdp.mode: hybrid_shard",
            "zero_optimization.zebra: 1: nothing in a recipe is like it"},
           {}},
          {"b.json",
           R"({"train_batch_size": 8, "tensor_parallel": {"autotp_size": 4}, "sequence_parallel_size": 2})",
           {"mesh: {dp: auto, cp: 2, tp: 4}", "algorithm: ulysses"},
           {"autotp_size"}},
          {"c.json",
           R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"weight_decay": 0.1, "adam_w_mode": false}}})",
           {part, "weight_decay: 0.1  # Adam adds it to gradients (L2), and here weights decay: equal at 0 alone"},
           {}},
          {"d.json",
           R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"weight_decay": 0.1}}})",
           {part, "weight_decay: 0.1\n"},
           {"adam_w_mode"}},
          {"e.yaml",
           "distributed_type: FSDP\nmixed_precision: fp8\nfsdp_config: {fsdp_zebra: 3, fsdp_version: 2}\n",
           {"precision: bf16_mixed", "mixed_precision: fp8: there is no FP8: layers compute in bf16",
            "fsdp_config.fsdp_zebra: 3: nothing in a recipe is like it"},
           {"fsdp_version"}},
          {"f.yaml",
           "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, zebra: true, zero3_init_flag: true}\n",
           {"mode: full_shard", "deepspeed_config.zebra: true: nothing in a recipe is like it"},
           {"zero3_init_flag"}},
          {"g.toml",
           "[training]\nsteps = 1000\n[lr_scheduler]\nwarmup_steps = 100\ndecay_ratio = 0.9\ndecay_type = 'cosine'\n",
           {"name: cosine", "warmup_steps: 100"},
           {"wsd", "decay_type"}},
          {"h.toml",
           "[training]\nsteps = 1000\n[lr_scheduler]\nwarmup_steps = 100\ndecay_ratio = 0.5\n",
           {"name: wsd", "decay_steps: 500"},
           {}},
          {"i.toml",
           "[optimizer]\nname = 'Adam'\n[checkpoint]\nzebra = 1\n[metrics]\nzebra = 2\n[compile]\nzebra = 3\n",
           {part, "weight_decay: 0.1  # Adam adds it to gradients (L2), and here weights decay: equal at 0 alone",
            "checkpoint.zebra: 1: nothing", "metrics.zebra: 2: nothing", "compile.zebra: 3: nothing"},
           {}}}) {
    const std::string text = converted(each.name, each.configuration);
    for (const std::string& word : each.in_recipe) EXPECT_TRUE(has(text, word)) << word << " is not in\n" << text;
    for (const std::string& word : each.not_in_recipe) EXPECT_FALSE(has(text, word)) << word << " is in\n" << text;
  }
}

TEST(RecipeCommand, RefusesWhatIsNoConfiguration) {
  const ScratchFolder folder;
  const auto complaint_of = [&](const std::string& name, const std::string& text) {
    write_file(folder.path() / name, text);
    return only_complaint(run_meshtrain({"recipe", "--from", (folder.path() / name).string()}));
  };
  const std::string path = folder.path().string() + "/";
  EXPECT_TRUE(has(complaint_of("a.yaml", "model: {}\n"), path + "a.yaml: not a configuration of torchtitan"));
  EXPECT_TRUE(has(complaint_of("b.toml", "[a\n"), path + "b.toml:1:3: not valid TOML: "));
  EXPECT_TRUE(has(complaint_of("d.json", "{\"fp16\": 1,\n  \"bf16\": }\n"),
                  path + "d.json:2:11: not valid JSON: syntax error while parsing value - unexpected '}'; expected"));
  EXPECT_TRUE(has(complaint_of("e.yaml", "fsdp_config: {a\nb: 3\n"), path + "e.yaml:"));
  EXPECT_TRUE(has(complaint_of("c.json", "[1]"), path + "c.json: a configuration is a map of keys, not a list"));
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"recipe", "--from", path + "none.toml"})), "No such file"));
  EXPECT_EQ(only_complaint(run_meshtrain({"recipe", "--from",
                                          source_folder() + "/tests/fixtures/foreign/" + kConfigurations[0].file,
                                          "--out", path + "a.yaml"})),
            "--out " + path + "a.yaml: it exists: give another name, or move it away");
}

TEST(RecipeCommand, SeveralUnknownKeysAreOneMessageInLines) {
  const ScratchFolder folder;
  const std::string file = (folder.path() / "a.yaml").string();
  write_file(file, "train: {stpes: 3, lr: 1}\n");
  const Ending ending = run_meshtrain({"train", file, "--check"});
  EXPECT_EQ(ending.status, 2);
  EXPECT_EQ(ending.err, "meshtrain: 2 unknown keys:\n  " + file + ":1:9: train.stpes: did you mean \"steps\"?\n  " +
                            file + ":1:19: train.lr: here it is optimizer.learning_rate\n");
}

TEST(Arguments, OfOtherLaunchersAndTrainersAreExplained) {
  for (const auto& [option, here] : std::vector<std::pair<std::string, std::string>>{
           {"--nproc_per_node", "mpirun -n N (or srun) starts ranks, and --mesh says what they are"},
           {"--nproc=2", "mpirun -n N (or srun) starts ranks, and --mesh says what they are"},
           {"--lr=1e-3", "it is --set optimizer.learning_rate=VALUE"},
           {"--train.steps=3", "it is --set train.steps=VALUE"},
           {"--tensor-model-parallel-size", "it is tp of --mesh, as in --mesh dp=2,tp=2,cp=2"},
           {"--train-iters=3", "it is --set train.steps=VALUE"},
           {"--training.steps=3", "it is --set train.steps=VALUE"},
           {"--global-batch-size", "it is --set train.global_batch=VALUE"},
           {"--resume_from=x", "it is --resume"},
           {"--use-distributed-optimizer", "it is parallel.fsdp.mode: shard_optimizer"},
           {"--learning-rate=3", "it is --set optimizer.learning_rate=VALUE"},
           {"--output_dir", "it is --run-dir; --set train.export=FOLDER writes the final weights"}}) {
    EXPECT_EQ(only_complaint(run_meshtrain({"train", "x.yaml", option})),
              "meshtrain train does not know " + option + "; here " + here + ": see meshtrain train --help");
  }
}

}  // namespace
}  // namespace meshtrain::testing

// Words of other systems, short forms and single entries of lists, in files and in --set.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "runtime/program/recipe/explain.h"
#include "runtime/program/recipe/foreign_words.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/yaml/known_keys.h"
#include "tests/runtime/program/recipe/recipe_folder.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

class RecipeWords : public ::testing::Test {
 protected:
  Recipe load(const std::vector<std::string>& overrides, const std::string& more = "") const {
    return load_recipe(folder_.write("r.yaml", kSmallRecipe + more), overrides, "");
  }
  std::string refusal(const std::vector<std::string>& overrides, const std::string& more = "") const {
    return input_error([&] { load(overrides, more); });
  }
  std::string file() const { return (folder_.path() / "r.yaml").string(); }

  const RecipeFolder folder_;
};

TEST_F(RecipeWords, OfOtherSystemsNameTheKeyHere) {
  for (const auto& [word, here] : std::vector<std::pair<std::string, std::string>>{
           {"optimizer.lr=1", "it is optimizer.learning_rate"},
           {"train.batch_size=1", "it is train.global_batch"},
           {"train.max_steps=1", "it is train.steps"},
           {"train.grad_clip=1", "it is train.clip_norm"},
           {"train.gradient_accumulation_steps=1", "they are train.global_batch / (dp x train.micro_batch)"},
           {"schedule.warmup=1", "it is schedule.warmup_steps"},
           {"data.path=x", "it is data.tokens"},
           {"model.path=x", "it is model.hf"},
           {"training.seq-len=1", "it is train.sequence_length"},
           {"training.local_batch_size=1", "it is train.micro_batch"},
           {"training.steps=1", "it is train.steps"},
           {"lr_scheduler.warmup_steps=1", "it is schedule.warmup_steps"},
           {"lr_scheduler.type=cosine", "it is schedule.name"},
           {"zero_optimization.stage=2", "it is parallel.fsdp.mode"},
           {"checkpoint.interval=1", "it is checkpoint.every"},
           {"checkpoint.folder=x", "it is an option: --run-dir"},
           {"output_dir=x", "it is an option: --run-dir"},
           {"resume_from=x", "it is an option: --resume"},
           {"train.save=5",
            "checkpoint.every is the steps between checkpoints, and --run-dir the folder that they are in"},
           {"data.train_files=x", "it is data.tokens"},
           {"evaluate.validation_files=x", "it is evaluate.tokens"},
           {"optimizer.decoupled-lr=1",
            "optimizer.groups gives the embedding and the head a learning_rate_factor of their own"},
           {"train.output_dir=x", "it is an option: --run-dir"},
           {"use_distributed_optimizer=true", "it is parallel.fsdp.mode: shard_optimizer"},
           {"parallel.pp=2",
            "models are not cut into pipeline stages: give these ranks to dp, tp or cp of "
            "parallel.mesh"},
           {"parallel.mesh.pp=2",
            "models are not cut into pipeline stages: give these ranks to dp, tp or cp of "
            "parallel.mesh"},
           {"optimizer.fused=true", "each optimizer has one implementation, and it is fused"},
           {"train.fp8=true", "there is no FP8: train.precision has bf16_mixed and bf16"},
           {"optimizer.min_lr=1e-5",
            "it is a share of the peak: schedule.min_ratio is min_lr / "
            "optimizer.learning_rate"},
           {"train.data_seed=1", "it is train.seed"},
           {"compile.enable=true", "nothing is compiled at run time; on GPUs train.cuda_graph records steps"},
           {"train.nproc_per_node=1", "it is parallel.mesh"},
           {"lr=1", "it is optimizer.learning_rate"}}) {
    EXPECT_EQ(refusal({word}), "--set " + word + ": unknown key; here " + here);
  }
  EXPECT_EQ(refusal({}, "schedule:\n  warmup: 3\n"),
            file() + ":17:3: schedule.warmup: unknown key; here it is schedule.warmup_steps");
  EXPECT_EQ(refusal({}, "lr_scheduler: {}\n"), file() + ":16:1: lr_scheduler: unknown key; here it is schedule");
}

/// Words that people bring along, each in the sections of the system that has them: none is left without an answer.
TEST_F(RecipeWords, OfOtherSystemsAreAnsweredInTheirSections) {
  const std::map<std::string, std::vector<std::string>> words = {
      {"training",
       {"local_batch_size", "global_batch_size", "seq_len", "max_norm", "steps", "dataset_path", "dtype",
        "mixed_precision_param", "mixed_precision_reduce", "enable_cpu_offload", "seed", "deterministic"}},
      {"parallelism",
       {"data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
        "tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree", "expert_parallel_degree",
        "context_parallel_rotate_method", "disable_loss_parallel", "enable_async_tensor_parallel"}},
      {"optimizer", {"lr", "implementation", "beta1", "fused", "foreach"}},
      {"lr_scheduler", {"warmup_steps", "decay_ratio", "decay_type", "min_lr_factor", "total_steps"}},
      {"checkpoint", {"enable", "folder", "interval", "keep_latest_k", "async_mode", "last_save_model_only"}},
      {"metrics", {"log_freq", "enable_tensorboard", "enable_wandb"}},
      {"model", {"name", "flavor", "hf_assets_path", "converters"}},
      {"activation_checkpoint", {"mode", "selective_ac_option"}},
      {"zero_optimization",
       {"stage", "overlap_comm", "offload_optimizer", "reduce_bucket_size", "contiguous_gradients",
        "zero_hpz_partition_size"}},
      {"",  // Megatron-LM, transformers, axolotl
       {"tensor-model-parallel-size",
        "pipeline-model-parallel-size",
        "use-distributed-optimizer",
        "global-batch-size",
        "micro-batch-size",
        "train-iters",
        "lr-warmup-iters",
        "lr-decay-style",
        "min-lr",
        "clip-grad",
        "save-interval",
        "recompute-granularity",
        "num-query-groups",
        "swiglu",
        "num_train_epochs",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "report_to",
        "wandb",
        "output_dir",
        "resume_from_checkpoint",
        "save_strategy",
        "base_model",
        "sequence_len",
        "sample_packing",
        "val_set_size",
        "lora_r",
        "load_in_4bit",
        "fp8"}}};
  for (const auto& [section, keys] : words) {
    for (const std::string& key : keys) {
      const bool is_ours = recipe_keys().has(section, key);
      EXPECT_TRUE(is_ours || recipe_keys().foreign_word(section, key)) << section << " " << key;
    }
  }
}

TEST_F(RecipeWords, UnknownKeysAreNamedAllAtOnce) {
  EXPECT_EQ(refusal({"train.stpes=3", "lr=1"}, "schedule: {warmup: 3, name: 7}\ntraining:\n  steps: 3\n  zebra: 1\n"),
            "5 unknown keys:\n  --set train.stpes=3: did you mean \"steps\"?\n  " + file() +
                ":16:12: schedule.warmup: here it is schedule.warmup_steps\n  " + file() +
                ":17:1: training: here it is train\n  " + file() +
                ":18:3: training.steps: here it is train.steps\n  --set lr=1: here it is optimizer.learning_rate")
      << "and not of the wrong word in schedule.name";
  std::string many;
  for (int i = 0; i < 30; ++i) many += "zebra" + std::to_string(i) + ": 1\n";
  const std::string message = refusal({}, many);
  EXPECT_EQ(message.rfind("30 unknown keys:\n  " + file() + ":16:1: zebra0\n", 0), 0u) << message;
  EXPECT_TRUE(message.ends_with(": zebra19\n  and 10 more")) << message;
  // A misspelt map is one unknown key, whatever is in it.
  EXPECT_EQ(refusal({}, "shcedule: {lr: 3}\n"), file() + ":16:1: shcedule: unknown key; did you mean \"schedule\"?");
}

TEST_F(RecipeWords, BracketsThatDoNotEndAreNoKeys) {
  for (const char* word : {"train[=1", "[=1", "]=1", "train.[=1", "train[]=1", "data.mixture[=1"}) {
    EXPECT_TRUE(has(refusal({word}), "give KEY=VALUE")) << refusal({word});
  }
  EXPECT_NE(refusal({"data.mixture[0.weight=1"}), "");
}

/// A value of another system is answered with our value or a sentence, even if another of our values is spelt like it.
TEST_F(RecipeWords, ValuesOfOtherSystemsNameTheValueHere) {
  for (const auto& [set, here] : std::vector<std::pair<std::string, std::string>>{
           {"train.precision=bfloat16",
            "it is bf16_mixed, or bf16 where the optimizer's weights and state are in bf16 too"},
           {"train.precision=float16", "it is fp16_mixed"},
           {"train.precision=fp8", "there is no FP8: train.precision has bf16_mixed and bf16"},
           {"train.precision=float32", "it is fp32"},
           {"parallel.fsdp.reduce_dtype=bfloat16", "it is bf16"},
           {"parallel.fsdp.mode=zero3", "it is full_shard"},
           {"parallel.fsdp=2", "it is shard_grad_op"},
           {"parallel.context.algorithm=p2p", "it is ring"},
           {"parallel.backend=gloo", "it is mpi"},
           {"parallel.mesh={dp: 1, pp: 2}",
            "models are not cut into pipeline stages: give these ranks to dp, tp or cp of parallel.mesh"},
           {"parallel.order=[pp, dp]",
            "models are not cut into pipeline stages: give these ranks to dp, tp or cp of parallel.mesh"},
           {"optimizer.name=adam", "it is adamw"},
           {"optimizer.name=lion", "optimizer.name has adamw, sgd and muon"},
           {"schedule=WSD", "it is wsd"},
           {"schedule=polynomial", "schedule.name has constant, cosine, linear and wsd"},
           {"train.activation_checkpointing=true", "it is full"},
           {"data.dtype=int64", "ids are unsigned and of 32 bits at most: data prepare writes the file again"},
           {"model.family=mixtral", "models have no experts"},
           {"device=gpu", "it is cuda"},
           {"device=mps", "ranks compute on CPUs and on GPUs of NVIDIA"}}) {
    const std::string message = refusal({set});
    EXPECT_TRUE(message.ends_with("; here " + here)) << message;
  }
}

TEST_F(RecipeWords, OfOtherSystemsLeadToKeysThatExist) {
  for (const auto& [word, answer] : foreign_words()) {
    const bool is_name = answer.kind == ForeignAnswer::Kind::Name;
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      const std::string name = word.substr(0, equals), value = is_name ? answer.text : "";
      const bool is_choice = std::ranges::any_of(recipe_keys().all(), [&](const KnownKey& key) {
        const bool is_named = key.path == name || key.path.ends_with("." + name);
        const auto& choices = key.rule.choices;
        return is_named && (value.empty() || std::ranges::find(choices, value) != choices.end());
      });
      EXPECT_TRUE(is_choice) << word << " " << answer.text;
      continue;
    }
    EXPECT_EQ(recipe_keys().find(word), nullptr) << word << " is a key";
    if (is_name) {
      EXPECT_NE(recipe_keys().find(answer.text), nullptr) << answer.text;
    }
  }
}

TEST_F(RecipeWords, AValueInThePlaceOfAMapIsForItsFirstWord) {
  Recipe recipe = load({"train.activation_checkpointing=full", "parallel.fsdp=shard_grad_op", "schedule=cosine"});
  EXPECT_EQ(recipe.train.activation_checkpointing.mode, "full");
  EXPECT_EQ(recipe.parallel.fsdp.mode, "shard_grad_op");
  EXPECT_EQ(recipe.schedule.name, Schedule::Cosine);
  recipe = load({}, "schedule: linear\ncheckpoint: 50\n");
  EXPECT_EQ(recipe.schedule.name, Schedule::Linear);
  EXPECT_EQ(recipe.checkpoint.every, 50);
  // Beside other keys of the map, which stay.
  recipe = load({"schedule=cosine"}, "schedule: {name: linear, warmup_steps: 3}\n");
  EXPECT_EQ(recipe.schedule.name, Schedule::Cosine);
  EXPECT_EQ(recipe.schedule.warmup_steps, 3);
  EXPECT_EQ(refusal({"train.activation_checkpointing=ful"}),
            "--set train.activation_checkpointing=ful: \"ful\" is not one of none, full, selective; did you mean "
            "\"full\"?");
  EXPECT_EQ(refusal({"train=3"}), "--set train=3: \"3\" is not a map of keys");
}

TEST_F(RecipeWords, TheBeginningOfAPathMayBeLeftOut) {
  EXPECT_EQ(load({"activation_checkpointing=full"}).train.activation_checkpointing.mode, "full");
  EXPECT_EQ(load({"clip_norm=2"}).train.clip_norm, 2);
  EXPECT_EQ(load({"fsdp.prefetch=3"}).parallel.fsdp.options.prefetch, 3);
  // Two keys end so.
  EXPECT_EQ(refusal({"steps=20"}), "--set steps=20: unknown key; did you mean \"train.steps\"?");
}

TEST_F(RecipeWords, ANumberNamesAnEntryOfAList) {
  const std::string mixture = "  mixture: [{tokens: a.bin, weight: 1}, {tokens: b.bin, weight: 2}]\n";
  const std::string text = std::string(kSmallRecipe).replace(kSmallRecipe.find("  tokens: tokens.bin\n"), 21, mixture);
  const auto load_mixture = [&](const std::vector<std::string>& overrides) {
    return load_recipe(folder_.write("m.yaml", text), overrides, "");
  };
  for (const char* path : {"data.mixture.0.weight=3", "data.mixture[0].weight=3", "mixture.0.weight=3"}) {
    const Recipe recipe = load_mixture({path});
    ASSERT_EQ(recipe.data.mixture.size(), 2u);
    EXPECT_EQ(recipe.data.mixture[0].weight, 3) << path;
    EXPECT_EQ(recipe.data.mixture[0].tokens, folder_.path() / "a.bin");
    EXPECT_EQ(recipe.data.mixture[1].weight, 2);
  }
  const auto refused = [&](const char* text_of_set) { return input_error([&] { load_mixture({text_of_set}); }); };
  EXPECT_EQ(refused("data.mixture.2.weight=3"),
            "--set data.mixture.2.weight=3: there is no entry 2: the list has 2, entries 0 to 1");
  EXPECT_EQ(refused("data.mixture.0.weight=-3"),
            "--set data.mixture.0.weight=-3: -3 is impossible: it must be above 0");
  EXPECT_EQ(refused("data.mixture.0.wieght=3"), "--set data.mixture.0.wieght=3: unknown key; did you mean \"weight\"?");
}

TEST_F(RecipeWords, ATabIsNamed) {
  EXPECT_EQ(refusal({}, "schedule:\n\tname: cosine\n"),
            file() + ":17:1: not valid YAML: a tab indents this line: indent with spaces");
  EXPECT_EQ(refusal({}, "schedule:\n  name: cosine\n  \twarmup_steps: 3\n"),
            file() + ":18:3: not valid YAML: a tab indents this line: indent with spaces");
}

TEST(ExplainKey, SaysKindDefaultWordsAndTheDocumentsText) {
  const std::string precision = explain_key("train.precision");
  for (const char* part :
       {"train.precision: a word\n", "  default: fp32\n", "  one of: fp64, fp32, bf16, bf16_mixed, fp16_mixed\n",
        "for weights, gradients and optimizer state alike"}) {
    EXPECT_TRUE(has(precision, part)) << precision;
  }
  EXPECT_TRUE(has(explain_key("optimizer.eps"), "default: 1e-8\n")) << explain_key("optimizer.eps");
  EXPECT_TRUE(has(explain_key("clip_norm"), "train.clip_norm: a number\n"));
  EXPECT_TRUE(has(explain_key("train.steps"), ": a whole number\n  needed\n"));
  EXPECT_TRUE(has(explain_key("data.mixture.ignore_id"), "Leaves labels with this id out of the loss."));
  EXPECT_TRUE(has(explain_key("schedule"), "a single value in its place is its name\n"));
  for (const std::string word : {"optimizer.lr", "lr"}) {
    EXPECT_EQ(explain_key(word),
              word + " is called optimizer.learning_rate here\n" + explain_key("optimizer.learning_rate"));
  }
}

TEST(ExplainKey, SaysWhereAKeyIsNeededAndWhatItsDefaultIs) {
  for (const auto& [key, text] : std::vector<std::pair<std::string, std::string>>{
           {"data.mixture.tokens", "a path\n  needed\n  Names the file"},
           {"data.mixture.weight", "a number\n  needed\n  above 0\n  Sets the share"},
           {"data.tokens", "a path\n  needed without mixture\n"},
           {"evaluate.dtype",
            "default: that of data.dtype\n  one of: uint8, uint16, uint32, megatron\n  Sets the type of the ids"},
           {"evaluate.shuffle", "true or false\n  default: false\n"},
           {"parallel.mesh.dp", "a whole number\n  at least 1, or the word auto\n"},
           {"evaluate.boundary_labels", "default: that of data.boundary_labels\n"},
           {"parallel.mesh", "  keys: dp, tp, cp\n  each size at least 1, or the word auto\n"},
           {"parallel.order", "  each one of: dp, tp, cp\n"},
           {"model.rope_scaling.low_freq_factor", "  needed for llama3\n  above 0\n"},
           {"data.documents", "  default: none\n  at least 0, or the word index\n"},
           {"schedule.warmup_steps", "in which the learning rate grows to its peak"},
           {"train.profile.ranks", "  each at least 0\n  Lists the ranks that write a trace.\n"},
           {"extends", "Names another recipe that this one starts from"},
           {"optimizer.decay",
            "  one of: all, matrices\n  Says whether norms and biases decay too, or matrices alone.\n"}}) {
    EXPECT_TRUE(has(explain_key(key), text)) << explain_key(key);
  }
  for (const KnownKey& key : recipe_keys().all()) {
    EXPECT_FALSE(has(explain_key(key.path), "default: needed")) << key.path;
  }
}

TEST(ExplainKey, AKeyOfTheShapeHasASentenceOfItsOwn) {
  for (const KnownKey& key : recipe_keys().all()) {
    if (!key.path.starts_with("model.")) continue;
    EXPECT_TRUE(text_of_key(key.path).own) << key.path;
  }
  const std::string text = explain_key("model.num_key_value_heads");
  EXPECT_TRUE(has(text, "number of key and value heads of a layer") && !has(text, "gemma")) << text;
  EXPECT_TRUE(has(explain_key("model.rope_scaling.beta_fast"), "  default: 32\n"));
}

TEST(ExplainKey, PointsToPagesAndNotBelow) {
  for (const KnownKey& key : recipe_keys().all()) {
    const std::string text = explain_key(key.path);
    EXPECT_FALSE(has(text, "see below") || has(text, "(below)") || has(text, "](")) << text;
  }
  EXPECT_TRUE(has(explain_key("train.precision"), "docs/recipe.md, \"Precision\"")) << explain_key("train.precision");
}

TEST(ExplainKey, TakesNumbersOfEntriesAndSections) {
  const std::string weight = explain_key("data.mixture.weight");
  for (const char* path : {"data.mixture.0.weight", "data.mixture[0].weight", "mixture.0.weight"}) {
    EXPECT_EQ(explain_key(path), weight);
  }
  const std::string section = explain_key("checkpoint");
  for (const char* key : {"every", "keep_last", "keep_every"}) {
    EXPECT_TRUE(has(section, "    checkpoint." + std::string(key) + " ")) << section;
  }
}

TEST(ExplainKey, AnUnknownKeyIsAnsweredWithThoseNearIt) {
  EXPECT_EQ(input_error([] { explain_key("batch"); }),
            "--explain batch: unknown key; near it are train.global_batch, train.micro_batch");
  EXPECT_EQ(input_error([] { explain_key("train.stpes"); }),
            "--explain train.stpes: unknown key; did you mean \"steps\"?");
  EXPECT_EQ(input_error([] { explain_key("zebra"); }),
            "--explain zebra: unknown key; meshtrain recipe --explain lists all keys");
  const std::string every = input_error([] { explain_key("every"); });
  EXPECT_TRUE(has(every, "near it are ") && has(every, "checkpoint.every") && has(every, "evaluate.every")) << every;
  EXPECT_EQ(explain_key("weight_decay"), explain_key("optimizer.weight_decay"));
  EXPECT_EQ(explain_key("steps"), explain_key("train.steps"));
}

/// One source for people: every key that a recipe can have is in docs/recipe.md, by itself or with the map it is in.
TEST(ExplainKey, EveryKeyHasAText) {
  for (const KnownKey& key : recipe_keys().all()) {
    if (key.kind == "a map of keys") continue;
    EXPECT_FALSE(text_of_key(key.path).text.empty() && text_of_key(key.path).default_value.empty()) << key.path;
  }
  for (const char* key :
       {"train.steps", "schedule.total_steps", "checkpoint.every", "optimizer.betas", "data.tokens"}) {
    EXPECT_TRUE(text_of_key(key).own) << key;
  }
}

/// A row says in full sentences what its key does, and a number's with its unit.
TEST(ExplainKey, ATextIsSentences) {
  const std::vector<std::string> units = {"number", "steps",   "seconds", "share",     "FLOP/s",    "norm",  "id",
                                          "base",   "divisor", "tokens",  "deviation", "factor",    "scale", "Lists",
                                          "peak",   "length",  "Divides", "Caps",      "Multiplies"};
  for (const KnownKey& key : recipe_keys().all()) {
    const KeyText about = text_of_key(key.path);
    if (!about.own || about.text.empty()) continue;
    std::string text = about.text, words;
    for (const std::string& word : key.rule.choices) words += (words.empty() ? "" : " ") + word;
    if (!words.empty() && text.starts_with(words + ": ")) text = text.substr(words.size() + 2);
    const std::string verb = text.substr(0, text.find(' '));
    EXPECT_TRUE(std::isupper(verb[0]) && verb.ends_with('s') && text.ends_with('.')) << key.path << ": " << text;
    if (!has(key.kind, "number") && !has(key.kind, "size")) continue;
    EXPECT_TRUE(std::ranges::any_of(units, [&](const auto& unit) { return has(text, unit); }))
        << key.path << ": " << text;
  }
}

/// Words that a key takes stand in its row.
TEST(ExplainKey, TheDocumentNamesEveryWord) {
  for (const KnownKey& key : recipe_keys().all()) {
    const KeyText about = text_of_key(key.path);
    if (!about.own || key.kind != "a word" || key.path.starts_with("evaluate.")) continue;  // as those of data
    for (const std::string& word : key.rule.choices) {
      if (word == "true" || word == "false" || key.path == "model.family") continue;
      EXPECT_TRUE(has(about.text + " " + about.default_value, word)) << key.path << " does not name " << word;
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing

// Words of other systems, short forms and single entries of lists, in files and in --set.

#include "runtime/program/recipe/foreign_words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

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
           {"parallel.pp=2", "it is parallel.mesh.pp"},
           {"pp_engine=1f1b", "it is parallel.pipeline.schedule"},
           {"parallel.num_layers_per_virtual_pipeline_stage=2",
            "it is the number of layers of a stage: parallel.pipeline.stages_per_rank is layers / pp / it"},
           {"parallel.pipeline.virtual_stages=2", "it is parallel.pipeline.stages_per_rank"},
           {"parallel.pipeline.microbatches=8", "a step has train.global_batch / (dp x train.micro_batch) of them"},
           {"parallel.mesh.pipeline=2", "it is parallel.mesh.pp"},
           {"parallel.pipeline.degree=2", "it is parallel.mesh.pp"},
           {"parallelism.pipeline_parallel_microbatch_size=2", "it is train.micro_batch, the samples of a micro-batch"},
           {"parallelism.pipeline_parallel_layers_per_stage=2", "it is parallel.pipeline.layers"},
           {"optimizer.fused=true", "each optimizer has one implementation, and it is fused"},
           {"train.fp8=true", "FP8 is not supported: train.precision has bf16_mixed and bf16"},
           {"optimizer.min_lr=1e-5",
            "it is a share of the peak: schedule.min_ratio is min_lr / "
            "optimizer.learning_rate"},
           {"train.data_seed=1", "it is train.seed"},
           {"compile.enable=true", "nothing is compiled at run time; on GPUs train.cuda_graph records steps"},
           {"train.nproc_per_node=1", "it is parallel.mesh"},
           {"parallel.fsdp.offload_optimizer=true", "it is parallel.fsdp.offload.parameters"},
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
           {"train.precision=fp8", "FP8 is not supported: train.precision has bf16_mixed and bf16"},
           {"train.precision=float32", "it is fp32"},
           {"parallel.fsdp.reduce_dtype=bfloat16", "it is bf16"},
           {"parallel.fsdp.mode=zero3", "it is full_shard"},
           {"parallel.fsdp=2", "it is shard_grad_op"},
           {"parallel.context.algorithm=p2p", "it is ring"},
           {"parallel.backend=gloo", "it is mpi"},
           {"parallel.mesh={dp: 1, pipe: 2}", "it is pp"},
           {"parallel.pipeline.schedule=Interleaved1F1B", "it is interleaved"},
           {"parallel.pipeline.schedule=zero_bubble", "it is zb_h1"},
           {"parallel.pipeline.schedule=DualPipeV", "parallel.pipeline.schedule has 1f1b, interleaved and zb_h1"},
           {"optimizer.name=adam", "it is adamw"},
           {"optimizer.name=lion", "optimizer.name has adamw, sgd and muon"},
           {"schedule=WSD", "it is wsd"},
           {"schedule=polynomial", "schedule.name has constant, cosine, linear and wsd"},
           {"train.activation_checkpointing=true", "it is full"},
           {"data.dtype=int64", "ids are unsigned and have at most 32 bits: write the file again with data prepare"},
           {"model.family=llama4",
            "docs/models.md lists the families with experts: mixtral, qwen2_moe, qwen3_moe and others"},
           {"device=gpu", "it is cuda"},
           {"device=mps", "ranks compute on CPUs and NVIDIA GPUs"}}) {
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

}  // namespace
}  // namespace meshtrain::testing

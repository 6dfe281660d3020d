// `meshtrain recipe` as its users run it: keys explained, and configurations of other trainers converted key by key.

#include "tests/support/files.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

TEST(RecipeCommand, ExplainsAKeyOrListsAll) {
  const Ending one = run_meshtrain({"recipe", "--explain", "train.clip_norm"});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(
      one.out,
      "train.clip_norm: a number\n  default: 1\n  at least 0\n  Scales the gradients of a step down to this L2 norm, "
      "over all parameters, when their norm is\n  larger. 0 turns clipping off.\n");
  const Ending all = run_meshtrain({"recipe", "--explain"});
  EXPECT_EQ(all.status, 0) << all.err;
  EXPECT_TRUE(has(all.out, "\nschedule.total_steps ")) << all.out;
  EXPECT_TRUE(has(all.out, "\ntrain.precision ")) << all.out;
  const Ending foreign = run_meshtrain({"recipe", "--explain", "train.grad_clip"});
  EXPECT_EQ(foreign.status, 0) << foreign.err;
  EXPECT_EQ(foreign.out, "train.grad_clip is called train.clip_norm here\n" + one.out);
  EXPECT_EQ(only_complaint(run_meshtrain({"recipe", "--explain", "warmup_ratio"})),
            "--explain warmup_ratio: unknown key; here it is a number of steps, schedule.warmup_steps");
  for (const auto& [word, here] : std::vector<std::pair<std::string, std::string>>{
           {"etp", "an expert is on one rank: tp does not cut it, ep of parallel.mesh takes its ranks instead"},
           {"dpo",
            "losses of preferences and rewards are not supported: training minimises the next-token loss, also on "
            "conversations (docs/data.md)"}}) {
    EXPECT_EQ(only_complaint(run_meshtrain({"recipe", "--explain", word})),
              "--explain " + word + ": unknown key; here " + here);
  }
  EXPECT_EQ(only_complaint(run_meshtrain({"recipe"})),
            "give --explain [KEY] or --from FILE: see meshtrain recipe --help");
}

/// Returns the recipe made of a configuration; its name says which tool it belongs to. Expects the status that says
/// whether something that changes numbers is missing.
std::string converted(const std::string& name, const std::string& configuration) {
  const ScratchFolder folder;
  write_file(folder.path() / name, configuration);
  const Ending ending = run_meshtrain({"recipe", "--from", (folder.path() / name).string()});
  const bool is_lost = has(ending.out, "\n# Not converted, and numbers change without it:\n");
  EXPECT_EQ(ending.status, is_lost ? 1 : 0) << ending.err << ending.out;
  EXPECT_EQ(has(ending.err, " numbers could not be converted: see the end of the recipe"), is_lost) << ending.err;
  return ending.out;
}

struct Part {
  std::string name;
  std::string configuration;
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
            "zero_optimization.zebra: 1: a recipe has no such setting"},
           {}},
          {"b.json",
           R"({"train_batch_size": 8, "tensor_parallel": {"autotp_size": 4}, "sequence_parallel_size": 2})",
           {"mesh: {dp: auto, cp: 2, tp: 4}", "algorithm: ulysses"},
           {"autotp_size"}},
          {"c.json",
           R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"weight_decay": 0.1, "adam_w_mode": false, "bias_correction": false}}})",
           {part, "weight_decay: 0.1\n", "bias_correction: false: adamw always corrects",
            "adam_w_mode: false: Adam adds the decay to gradients (L2), meshtrain's adamw does not"},
           {}},
          {"d.json",
           R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"weight_decay": 0.1}}})",
           {part, "weight_decay: 0.1\n", "optimizer.decay: matrices for transformers' Trainer"},
           {"adam_w_mode", "Not converted"}},
          {"e.yaml",
           "distributed_type: FSDP\nmixed_precision: fp8\nfsdp_config: {fsdp_zebra: 3, fsdp_version: 2}\n",
           {"precision: bf16_mixed", "mixed_precision: fp8: FP8 is not supported: layers compute in bf16",
            "fsdp_config.fsdp_zebra: 3: a recipe has no such setting"},
           {"fsdp_version"}},
          {"f.yaml",
           "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, zebra: true, zero3_init_flag: true}\n",
           {"mode: full_shard", "deepspeed_config.zebra: true: a recipe has no such setting"},
           {"zero3_init_flag"}},
          {"g.yaml",
           "distributed_type: FSDP\ngradient_clipping: 0.5\nfsdp_config: {fsdp_version: 2}\n",
           {"clip_norm: 0.5\n"},
           {"Not converted", "train.clip_norm: in the script"}}}) {
    const std::string text = converted(each.name, each.configuration);
    for (const std::string& word : each.in_recipe) EXPECT_TRUE(has(text, word)) << word << " is not in\n" << text;
    for (const std::string& word : each.not_in_recipe) EXPECT_FALSE(has(text, word)) << word << " is in\n" << text;
  }
}

/// Returns the lines of what is still to be given, or of what was not converted.
std::string lines_after(const std::string& recipe, const std::string& title) {
  const size_t begin = std::min(recipe.find("# " + title), recipe.size());
  return recipe.substr(begin, recipe.find("\n\n", begin) - begin);
}

TEST(RecipeCommand, EveryAutoOfDeepSpeedIsToBeGivenWithWhatFillsItIn) {
  const std::string text = converted("a.json", R"({"fp16": {"enabled": "auto", "loss_scale_window": 500},
      "bf16": {"enabled": "auto"}, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": "auto",
      "zero_optimization": {"stage": "auto", "offload_param": {"device": "auto"}, "reduce_bucket_size": "auto"},
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
      "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                    "warmup_num_steps": "auto", "total_num_steps": "auto"}}})");
  const std::string given = lines_after(text, "Still to be given");
  for (const char* line :
       {"train.micro_batch: train_micro_batch_size_per_gpu is auto: give the Trainer's per_device_train_batch_size (by "
        "default 8); until then the recipe has 1",
        "train.global_batch: train_batch_size, gradient_accumulation_steps are auto: give the Trainer's "
        "per_device_train_batch_size x gradient_accumulation_steps x the dp ranks",
        "train.precision: bf16.enabled, fp16.enabled are auto: give bf16_mixed for the Trainer's bf16, fp16_mixed for "
        "its fp16 (with parallel.fsdp.reduce_dtype: bf16 or fp16, and train.loss_scale: {initial: 65536, "
        "growth_interval: 500, min: 1}); until then the recipe has fp32",
        "train.clip_norm: gradient_clipping is auto: give the Trainer's max_grad_norm (by default 1); until then the "
        "recipe has 1",
        "schedule.warmup_steps: scheduler.params.warmup_num_steps is auto: give the Trainer's warmup_steps, or its "
        "warmup_ratio x train.steps (by default 0), at least 2; until then the recipe has 2",
        "optimizer.learning_rate: optimizer.params.lr, scheduler.params.warmup_max_lr are auto: give the Trainer's "
        "learning_rate (by default 5e-05)",
        "parallel.fsdp.mode: zero_optimization.stage is auto: ", "parallel.fsdp.offload.to: zero_optimization.",
        "optimizer.betas: ", "optimizer.eps: ", "optimizer.weight_decay: ", "schedule.total_steps: "}) {
    EXPECT_TRUE(has(given, "\n#   " + std::string(line))) << line << " is not in\n" << text;
  }
  EXPECT_FALSE(has(text, "steps_per_print")) << text;
  EXPECT_FALSE(has(text, "\n    mode: ")) << "no stage, so no mode\n" << text;
  EXPECT_FALSE(has(text, "reduce_bucket_size")) << text;

  const std::string half = converted(
      "b.json",
      R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto", "train_batch_size": 64})");
  EXPECT_FALSE(has(half, "accumulation")) << "it follows from the batches\n" << half;
  EXPECT_TRUE(
      has(converted("c.json", R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto"})"),
          "gradient_accumulation_steps is auto: give the Trainer's 4 x gradient_accumulation_steps x the dp"));
  EXPECT_TRUE(has(converted("d.json", R"({"train_batch_size": 64})"),
                  "clip_norm: 1  # the default of DeepSpeed 0.19.5; 0 before 0.19.3"));
}

/// accelerate cuts parameters over dp_shard x cp, and copies them over dp_replicate.
TEST(RecipeCommand, ReplicasAreCutOverTheirShardsAndContextParallelRanks) {
  struct Degrees {
    int replicas, shards, cp;
    std::string mesh, sharding;
  };
  const std::string full = "mode: full_shard\n", none = "mode: no_shard\n", hybrid = "mode: hybrid_shard\n";
  const std::string with_cp = "  # data-parallel shards x cp\n";
  for (const Degrees& each : std::vector<Degrees>{{1, 1, 1, "dp: 1", none},
                                                  {1, 4, 1, "dp: 4", full},
                                                  {1, 1, 4, "dp: 1", full},
                                                  {1, 2, 4, "dp: 2", full},
                                                  {4, 1, 1, "dp: 4", none},
                                                  {2, 2, 1, "dp: 4", hybrid + "    shard_size: 2\n"},
                                                  {2, 1, 2, "dp: 2", hybrid + "    shard_size: 2" + with_cp},
                                                  {2, 2, 2, "dp: 4", hybrid + "    shard_size: 4" + with_cp}}) {
    const auto degree = [](int value) { return std::to_string(value); };
    const std::string title = degree(each.replicas) + " " + degree(each.shards) + " " + degree(each.cp) + "\n";
    const auto expect = [&](const std::string& text) {
      EXPECT_TRUE(has(text, each.mesh + ", cp: " + degree(each.cp))) << title << text;
      EXPECT_TRUE(has(text, each.sharding)) << title << text;
      EXPECT_EQ(has(text, "    shard_size:"), has(each.sharding, "shard_size")) << title << text;
    };
    const std::string prefix = "  parallelism_config_";
    expect(converted("a.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: " +
                                   std::string(each.sharding == none ? "NO_SHARD" : "FULL_SHARD") +
                                   "}\nparallelism_config:\n" + prefix + "dp_replicate_size: " + degree(each.replicas) +
                                   "\n" + prefix + "dp_shard_size: " + degree(each.shards) + "\n" + prefix +
                                   "cp_size: " + degree(each.cp) + "\n"));
  }
}

TEST(RecipeCommand, ReadsTheArgumentsOfMegatron) {
  const std::string usual =
      "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --position-embedding-type rope "
      "--swiglu --disable-bias-linear --normalization RMSNorm --attention-dropout 0 "
      "--hidden-dropout=0 ";
  for (const Part& each : std::vector<Part>{
           {"plain.txt",
            "--lr 1e-3\n--data-path 0.3 a 0.7 b # two\n--reset-position-ids --num-layers 2 --add-qkv-bias",
            {"learning_rate: 0.001",
             "mixture: [{tokens: a.bin, dtype: megatron, shuffle: true, weight: 0.3}, {tokens: b.bin"},
            {}},
           {"lines.txt",
            "--nnodes\n4\npretrain_gpt.py\n--num-layers\n2\n--lr\n'1e-3'\n--data_path=\"/d/text document\" \\\n"
            "  --qk-layernorm --disable-bias-linear --seed\n7\n",
            {"num_hidden_layers: 2", "tokens: \"/d/text document.bin\"\n", "dtype: megatron", "family: qwen3",
             "learning_rate: 0.001\n", "seed: 7\n"},
            {"attention_bias", "nnodes"}},
           {"factor.txt",
            usual + "--use-rope-scaling --rope-scaling-factor 32",
            {"rope_type: llama3, factor: 32,", "--rope-scaling-factor: Megatron's GPT models ignore it"},
            {}},
           {"eight.txt",
            usual + "--use-rope-scaling --rope-scaling-factor 8",
            {"rope_type: llama3, factor: 8,"},
            {"--rope-scaling-factor"}},
           {"script.sh",
            "#!/bin/sh\npython pretrain_gpt.py --num-layers 4 --add-qkv-bias --disable-bias-linear --zebra 5\n",
            {"num_hidden_layers: 4\n", "family: qwen2", "--zebra: 5: a recipe has no such setting"},
            {}}}) {
    const std::string text = converted(each.name, each.configuration);
    for (const std::string& word : each.in_recipe) EXPECT_TRUE(has(text, word)) << word << " is not in\n" << text;
    for (const std::string& word : each.not_in_recipe) EXPECT_FALSE(has(text, word)) << word << " is in\n" << text;
  }
  const std::string all = converted("all.txt", usual +
                                                   "--use-rope-scaling --lr 1e-3 --train-iters 100 --lr-decay-style "
                                                   "WSD --lr-wsd-decay-iters 20 --lr-wsd-decay-style linear "
                                                   "--tensor-model-parallel-size 2 --sequence-parallel --vocab-size 64 "
                                                   "--context-parallel-size 2 --cp-comm-type a2a --global-batch-size 8 "
                                                   "--seq-length 32 --data-path text --recompute-granularity full");
  for (const char* word :
       {"rope_type: llama3, factor: 8,", "name: wsd", "decay_steps: 20", "algorithm: ulysses", "mode: full\n",
        "mode: no_shard", "intermediate_size: 128  # the default of Megatron-LM core_v0.19.0"}) {
    EXPECT_TRUE(has(all, word)) << word << " is not in\n" << all;
  }
  EXPECT_FALSE(has(all, "Still to be given") || has(all, "sequence_parallel:")) << all;
  EXPECT_EQ(lines_after(all, "Not converted"),
            "# Not converted, and numbers change without it:\n#   --init-method-std: first weights at the end of a "
            "sublayer are not divided by sqrt(2 x layers)\n");
}

void expect_parts(const std::vector<Part>& configurations) {
  for (const Part& each : configurations) {
    const std::string text = converted(each.name, each.configuration);
    for (const std::string& word : each.in_recipe) EXPECT_TRUE(has(text, word)) << word << " is not in\n" << text;
    for (const std::string& word : each.not_in_recipe) EXPECT_FALSE(has(text, word)) << word << " is in\n" << text;
  }
}

/// Each default of a tool that is not ours stands in the recipe, with the version that it is of.
TEST(RecipeCommand, DefaultsOfTheToolAreWrittenOut) {
  const auto defaults = [](const std::string& tool, const std::vector<std::string>& keys) {
    std::vector<std::string> lines;
    for (const std::string& key : keys) lines.push_back("  " + key + "  # the default of " + tool);
    return lines;
  };
  const std::string megatron = "Megatron-LM core_v0.19.0";
  const std::string adam_keys = R"({"train_batch_size": 8, "optimizer": {"type": "AdamW"}, )"
                                R"("scheduler": {"type": "WarmupDecayLR"}, "fp16": {"enabled": true}})";
  const std::string muon_keys = R"({"train_batch_size": 8, "optimizer": {"type": "Muon"}, )"
                                R"("scheduler": {"type": "WarmupCosineLR"}, "bf16": {"enabled": true}})";
  const std::string torch_keys = R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": )"
                                 R"({"torch_adam": true}}, "fp16": {"enabled": true}})";
  const std::string
      fsdp = "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n",
      ddp = "distributed_type: MULTI_GPU\nmixed_precision: bf16\n",
      zero = "distributed_type: DEEPSPEED\nmixed_precision: fp16\ndeepspeed_config: {zero3_init_flag: true}\n",
      lm = "distributed_type: MEGATRON_LM\nmegatron_lm_config: {megatron_lm_tp_degree: 2, "
           "megatron_lm_use_distributed_optimizer: true, megatron_lm_recompute_activations: true}\n";
  const Words adam = {"learning_rate: 0.001", "betas: [0.9, 0.999]", "eps: 1e-08",
                      "weight_decay: 0",      "clip_norm: 1",        "warmup_steps: 1000",
                      "first_ratio: 0",       "warmup_shape: log",   "reduce_dtype: fp16"},
              muon = {"learning_rate: 0.02", "adamw_learning_rate: 0.0003", "scale: original",
                      "nesterov: true",      "coefficients: simple",        "newton_schulz_steps: 5",
                      "momentum: 0.95",      "betas: [0.9, 0.95]",          "eps: 1e-10",
                      "weight_decay: 0",     "min_ratio: 0.0001",           "reduce_dtype: bf16"},
              megatron_adam = {"name: linear",
                               "min_ratio: 0",
                               "weight_decay: 0.01",
                               "clip_norm: 1",
                               "eps: 1e-08",
                               "betas: [0.9, 0.999]",
                               "seed: 1234",
                               "initial: 4294967296",
                               "growth_interval: 1000",
                               "min: 1",
                               "reduce_dtype: fp16",
                               "algorithm: ring",
                               "rope_theta: 10000",
                               "initializer_range: 0.02",
                               "rms_norm_eps: 1e-05"},
              megatron_muon = {"momentum: 0.9",         "scale: spectral",        "scale_factor: 1", "nesterov: false",
                               "coefficients: quintic", "newton_schulz_steps: 5", "warmup_steps: 0"};
  expect_parts({{"a.json", adam_keys, defaults("DeepSpeed 0.19.5", adam), {}},
                {"b.json", muon_keys, defaults("DeepSpeed 0.19.5", muon), {}},
                {"c.json",
                 torch_keys,
                 {"growth_interval: 1000\n", "initial: 65536\n", "weight_decay: 0.01  # the default of DeepSpeed",
                  "fp16.hysteresis: 2: meshtrain shrinks the scale"},
                 {}},
                {"a.txt",
                 "--num-layers 2 --lr 1e-3 --lr-warmup-iters 4 --fp16 --context-parallel-size 2",
                 defaults(megatron, megatron_adam),
                 {}},
                {"b.txt", "--num-layers 2 --lr 1e-3 --optimizer muon", defaults(megatron, megatron_muon), {}},
                {"c.txt",
                 "--num-layers 2 --use-megatron-fsdp --optimizer sgd",
                 {"mode: full_shard\n", "shuffle: true", "momentum: 0.9  # the default", "--swiglu is absent"},
                 {}},
                {"d.txt",
                 "--num-layers 2 --swiglu --optimizer muon --tensor-model-parallel-size 2 --muon-no-split-qkv",
                 {"--swiglu: Megatron orthogonalises gate and up as one matrix", "--muon-tp-mode: blockwise",
                  "--muon-no-split-qkv: true"},
                 {}},
                {"a.yaml",
                 fsdp,
                 {"reduce_dtype: bf16  # the default of accelerate 1.14.0", "mode: full_shard\n"},
                 {"residual_dtype"}},
                {"b.yaml", ddp, {"residual_dtype: fp32  # as under autocast"}, {"reduce_dtype"}},
                {"c.yaml",
                 zero,
                 {"mode: shard_grad_op  # the default of accelerate 1.14.0",
                  "clip_norm: 1  # the default of accelerate", "growth_interval: 1000", "reduce_dtype: fp16"},
                 {}},
                {"d.yaml",
                 lm,
                 {"clip_norm: 1  # the default of accelerate", "mode: shard_optimizer", "mode: selective",
                  "mesh: {dp: auto, cp: 2, tp: 2}  # cp: the default of accelerate", "algorithm: ring"},
                 {"Not converted"}}});
}

TEST(RecipeCommand, PeakOfDeepSpeedsWarmUpIsItsSchedules) {
  const auto of = [](const std::string& type, const std::string& rate, const std::string& params) {
    return converted("a.json", R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": )" + rate +
                                   R"(}}, "scheduler": {"type": ")" + type + R"(", "params": {)" + params + "}}}");
  };
  for (const std::string type : {"WarmupLR", "WarmupDecayLR"}) {
    const std::string own = of(type, "3e-4", R"("warmup_max_lr": 2e-5)");
    EXPECT_TRUE(
        has(own, "learning_rate: 2e-05  # warmup_max_lr of " + type + ", and optimizer.params.lr has no effect"))
        << own;
  }
  EXPECT_TRUE(has(of("WarmupDecayLR", "3e-4", ""),
                  "learning_rate: 0.001  # the default of DeepSpeed 0.19.5, warmup_max_lr of WarmupDecayLR"));
  EXPECT_TRUE(has(of("WarmupLR", "3e-4", ""), "learning_rate: 0.0003\n"));
  EXPECT_TRUE(has(of("WarmupCosineLR", "3e-4", ""), "learning_rate: 0.0003\n"));
  const std::string open = of("WarmupLR", "3e-4", R"("warmup_max_lr": "auto")");
  EXPECT_TRUE(has(open, "scheduler.params.warmup_max_lr is auto: give the Trainer's learning_rate")) << open;
}

TEST(RecipeCommand, RotationOfContextParallelRanksIsTakenOrListed) {
  const std::string prefix = "distributed_type: FSDP\nparallelism_config:\n  parallelism_config_cp_comm_strategy: ";
  const std::string several = prefix + "alltoall\n  parallelism_config_cp_size: 2\n";
  expect_parts({{"a.yaml", (prefix + "alltoall\n"), {"cp_comm_strategy: alltoall: cp is 1"}, {"algorithm"}},
                {"b.yaml", several, {"algorithm: ring\n"}, {"alltoall"}},
                {"c.yaml", (prefix + "allgather\n"), {}, {"algorithm", "allgather"}},
                {"d.yaml", (prefix + "zebra\n"), {"parallel.context.algorithm has all_gather and ring"}, {}}});
}

TEST(RecipeCommand, ScriptOfAccelerateHasItsOptimizerAndSchedule) {
  const std::string given = lines_after(converted("a.yaml", "distributed_type: FSDP\n"), "Still to be given");
  for (const char* key :
       {"train.clip_norm", "optimizer.eps", "optimizer.weight_decay", "optimizer.betas", "schedule.name"}) {
    EXPECT_TRUE(
        has(given, "#   " + std::string(key) + ": in the script that accelerate launches: its ") ||
        has(given, "#   " + std::string(key) + ": in the script that accelerate launches: that of its optimizer"))
        << given;
  }
}

TEST(RecipeCommand, KeysNearThoseOfTheToolAreAskedAbout) {
  const std::string none = ": a recipe has no such setting";
  expect_parts(
      {{"a.json",
        R"({"train_batch_size": 8, "gradient_cliping": 2, "zebra": 1, "zero_optimisation": {"stage": 1}})",
        {"gradient_cliping: 2" + none + "; did you mean gradient_clipping?", "zebra: 1" + none + "\n",
         "zero_optimisation.stage: 1" + none + "; did you mean zero_optimization.stage?"},
        {}},
       {"a.txt",
        "pretrain_gpt.py --num-layers 2 --seq-lenght 4096 --zebra 3\n",
        {"--seq-lenght: 4096" + none + "; did you mean --seq-length?", "--zebra: 3" + none + "\n"},
        {}},
       {"b.json", R"({"train_batch_size": 8, "train_batch_sizes": 5})", {"train_batch_sizes: 5" + none + "\n"}, {}}});
}

TEST(RecipeCommand, NamesTheTrainerWhoseFilesAreNotConverted) {
  for (const auto& [text, name] : std::vector<std::pair<std::string, std::string>>{
           {"model_name_or_path: a\nstage: sft\nfinetuning_type: full\ngradient_accumulation_steps: 8\nfp16: "
            "true\n",
            "LLaMA-Factory (it has model_name_or_path, finetuning_type)"},
           {"model_name_or_path: a\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 8\nbf16: "
            "true\n",
            "transformers' TrainingArguments, or of TRL (it has model_name_or_path, "
            "per_device_train_batch_size)"},
           {"language_model: {num_layers: 24}\nmodel_parallel: {tensor_model_parallel_size: 1}\noptimizer: "
            "{lr: 1}\n",
            "Megatron-LM (--yaml-cfg) (it has language_model, model_parallel)"},
           {"model: {name: llama3}\ntraining: {steps: 3}\nparallelism: {tensor_parallel_degree: "
            "2}\noptimizer: {lr: 1}\n",
            "torchtitan (it has parallelism, training)"}}) {
    const ScratchFolder folder;
    write_file(folder.path() / "a.yaml", text);
    const std::string file = (folder.path() / "a.yaml").string();
    const std::string complaint = only_complaint(run_meshtrain({"recipe", "--from", file}));
    EXPECT_TRUE(complaint.starts_with(file + ": looks like a configuration of " + name +
                                      "; such files are not converted: write a recipe"))
        << complaint;
  }
  for (const char* own : {R"({"bf16": {"enabled": true}})", R"({"zero_optimization": {"stage": 1}})"}) {
    EXPECT_TRUE(has(converted("a.json", own), "a configuration of DeepSpeed"));
  }
}

TEST(RecipeCommand, RefusesWhatIsNoConfiguration) {
  const ScratchFolder folder;
  const auto complaint_of = [&](const std::string& name, const std::string& text) {
    write_file(folder.path() / name, text);
    return only_complaint(run_meshtrain({"recipe", "--from", (folder.path() / name).string()}));
  };
  const std::string path = folder.path().string() + "/";
  EXPECT_TRUE(
      has(complaint_of("a.yaml", "model: {}\n"), path + "a.yaml: this is not a configuration of a known trainer"));
  EXPECT_TRUE(has(complaint_of("a.py", "x = 1\n"), path + "a.py: configurations in Python are not read"));
  EXPECT_TRUE(has(complaint_of("b.yaml", "optimizer: {lr: 1}\nscheduler: {name: a}\nnum_processes: 2\n"),
                  path + "b.yaml: this is not a configuration of a known trainer"));
  EXPECT_TRUE(has(
      complaint_of("b.toml", "[a]\n"),
      path + "b.toml: torchtitan's TOML is not read: torchtitan stopped using it in February 2026; write a recipe"));
  for (const auto& [text, at] : std::vector<std::pair<std::string, std::string>>{
           {"--num-layers 2\n  --seq-length $SEQ_LENGTH\n", "2:16: \"$SEQ_LENGTH\""},
           {"--num-layers 2 --lr \"${LR}\"\n", "1:21: \"${LR}\""},
           {"ARGS=(\n--num-layers 2\n)\npython pretrain_gpt.py ${ARGS[@]}\n", "1:1: \"ARGS=(\""},
           {"python pretrain_gpt.py --num-layers 2 | tee log\n", "1:39: \"|\""}}) {
    EXPECT_EQ(complaint_of("g.sh", text),
              path + "g.sh:" + at +
                  " needs a shell, and scripts are not read: give a file with the arguments that the script passes to "
                  "Megatron-LM; docs/recipe.md has the command that writes them");
  }
  EXPECT_EQ(complaint_of("h.txt", "--num-layers 'a\n"), path + "h.txt:1:14: a quotation mark is not closed");
  EXPECT_TRUE(has(complaint_of("f.sh", "python train.py --bs 3\n"),
                  path + "f.sh: has no arguments of Megatron-LM or torchtitan: "
                         "recipe --from converts"));
  EXPECT_TRUE(has(complaint_of("d.json", "{\"fp16\": 1,\n  \"bf16\": }\n"),
                  path + "d.json:2:11: not valid JSON: syntax error while parsing value - unexpected '}'; expected"));
  EXPECT_TRUE(has(complaint_of("e.yaml", "fsdp_config: {a\nb: 3\n"), path + "e.yaml:"));
  EXPECT_TRUE(has(complaint_of("c.json", "[1]"), path + "c.json: a configuration is a map of keys, not a list"));
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"recipe", "--from", path + "none.json"})), "No such file"));
  EXPECT_EQ(
      only_complaint(run_meshtrain({"recipe", "--from", source_folder() + "/tests/fixtures/foreign/accelerate_nd.yaml",
                                    "--out", path + "a.yaml"})),
      "--out " + path + "a.yaml already exists: give another name, or move it away");
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
           {"--nproc_per_node", "mpirun -n N (or srun) starts ranks, and --mesh arranges them"},
           {"--nproc=2", "mpirun -n N (or srun) starts ranks, and --mesh arranges them"},
           {"--lr=1e-3", "it is --set optimizer.learning_rate=VALUE"},
           {"--train.steps=3", "it is --set train.steps=VALUE"},
           {"--tensor-model-parallel-size", "it is tp of --mesh, as in --mesh pp=2,dp=2,tp=2"},
           {"--pp", "it is pp of --mesh, as in --mesh pp=2,dp=2,tp=2"},
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

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/foreign/conversion.h"
#include "runtime/foreign/foreign_config.h"
#include "runtime/yaml/scalar_text.h"

namespace meshtrain {
namespace {

const char* const kTitansDefault = "torchtitan's default";

/// The shape of a flavor of torchtitan's llama3.
struct Flavor {
  const char* name;
  int64_t hidden_size, layers, heads, kv_heads, intermediate_size, vocab_size;
};
constexpr Flavor kFlavors[] = {{"debugmodel", 256, 6, 16, 16, 768, 2048},
                               {"8B", 4096, 32, 32, 8, 14336, 128256},
                               {"70B", 8192, 80, 64, 8, 28672, 128256},
                               {"405B", 16384, 126, 128, 8, 53248, 128256}};

void take_titan_model(Conversion& from) {
  const std::string name = from.word("model.name").value_or(""), flavor = from.word("model.flavor").value_or("");
  for (const Flavor& known : kFlavors) {
    if (name != "llama3" || flavor != known.name) continue;
    from.set("model.family", std::string("llama"), name + " " + flavor + ", spelled out; model.hf: FOLDER has weights");
    from.set("model.hidden_size", known.hidden_size);
    from.set("model.num_hidden_layers", known.layers);
    from.set("model.num_attention_heads", known.heads);
    from.set("model.num_key_value_heads", known.kv_heads);
    from.set("model.intermediate_size", known.intermediate_size);
    from.set("model.vocab_size", known.vocab_size, "of the tokenizer");
    from.set("model.rope_theta", 500000.0);
    from.set("model.rope_scaling",
             std::string("{rope_type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, "
                         "original_max_position_embeddings: 8192}"),
             "torchtitan's, of each llama3 flavor");
    from.set("model.rms_norm_eps", 1e-5);
    from.set("model.initializer_range", 0.02,
             "torchtitan divides it by sqrt(2 x (1 + layer)) where a sublayer ends, and has 1 for the embedding and "
             "1 / sqrt(hidden_size) for the head");
  }
  if (!from.is_set("model.hidden_size")) {
    from.need("model.hf", "a folder with the config.json of " + name + " " + flavor +
                              ", with model.init: random where it is to be trained from its first weights");
  }
  const char* tokens = "texts become tokens before the run: meshtrain data prepare --text ... --tokenizer ...";
  from.refuse("model.hf_assets_path", tokens);
  from.refuse("model.tokenizer_path", tokens);
  from.refuse("model.converters", "there is no FP8: layers compute in the dtype of train.precision");
  from.ignore("model.print_after_conversion");
  for (const char* map : {"float8", "quantize", "mx"}) from.ignore(map);  // of the converters
}

void take_titan_optimizer(Conversion& from) {
  const std::string name = lower_case(from.word("optimizer.name").value_or("AdamW"));
  if (name == "adamw" || name == "adam") {
    from.set("optimizer.name", std::string("adamw"));
  } else {
    from.refuse("optimizer.name", "optimizer.name has adamw, sgd and muon");
  }
  const auto take = [&](const char* key, const std::string& ours, double usual) {
    const std::optional<double> value = from.number(key);
    from.set(ours, value.value_or(usual), value ? "" : kTitansDefault);
  };
  take("optimizer.lr", "optimizer.learning_rate", 8e-4);
  take("optimizer.eps", "optimizer.eps", 1e-8);
  const char* const decay = "optimizer.weight_decay";
  take(decay, decay, 0.1);
  if (const double value = from.number(decay).value_or(0.1); name == "adam" && value > 0) {
    from.set(decay, value, Conversion::kDecayOfAdam);
  }
  const std::optional<double> beta1 = from.number("optimizer.beta1"), beta2 = from.number("optimizer.beta2");
  from.set("optimizer.betas", "[" + scalar_text(beta1.value_or(0.9)) + ", " + scalar_text(beta2.value_or(0.95)) + "]",
           beta1 && beta2 ? "" : kTitansDefault);
  from.ignore("optimizer.implementation");
  from.ignore("optimizer.fused");
  from.refuse("optimizer.early_step_in_backward", "the update comes behind the clipping of all gradients");
}

void take_titan_schedule(Conversion& from, int64_t steps) {
  const std::optional<int64_t> asked = from.whole("lr_scheduler.warmup_steps");
  const int64_t warmup = std::min(asked.value_or(200), steps);
  from.set("schedule.warmup_steps", warmup, asked ? "" : kTitansDefault);
  const std::string type = from.word("lr_scheduler.decay_type").value_or("linear");
  const std::optional<double> ratio = from.number("lr_scheduler.decay_ratio");
  from.set("schedule.min_ratio", from.number("lr_scheduler.min_lr_factor").value_or(0));
  if (const auto total = from.whole("lr_scheduler.total_steps")) {
    from.set("schedule.total_steps", *total);
    steps = *total;
  }
  const auto decay = static_cast<int64_t>(std::nearbyint(static_cast<double>(steps) * ratio.value_or(1)));
  const bool holds = warmup + decay < steps;  // the peak, for some steps; torchtitan shortens a longer decay
  if (type != "linear" && (holds || type != "cosine")) {
    from.refuse("lr_scheduler.decay_type", "a decay over a part of the steps is linear, one over all linear or cosine");
  }
  if (holds) {
    from.set("schedule.name", std::string("wsd"));
    from.set("schedule.decay_steps", std::max<int64_t>(decay, 1));
  } else {
    from.set("schedule.name", std::string(type == "cosine" ? "cosine" : "linear"));
  }
}

void take_titan_precision(Conversion& from) {
  const std::string param = from.word("training.mixed_precision_param").value_or("bfloat16"),
                    dtype = from.word("training.dtype").value_or("float32"),
                    reduce = from.word("training.mixed_precision_reduce").value_or("float32");
  const bool is_half = dtype == "bfloat16", computes_half = is_half || param == "bfloat16";
  from.set("train.precision", std::string(is_half ? "bf16" : computes_half ? "bf16_mixed" : "fp32"));
  if (!is_half && computes_half && reduce == "bfloat16") from.set("parallel.fsdp.reduce_dtype", std::string("bf16"));
  if (is_half && reduce == "float32") from.set("parallel.fsdp.reduce_dtype", std::string("fp32"));
}

/// Returns the data-parallel ranks; 0: as many as are left.
int64_t take_titan_parallelism(Conversion& from) {
  const int64_t replicas = from.whole("parallelism.data_parallel_replicate_degree").value_or(1),
                shards = from.whole("parallelism.data_parallel_shard_degree").value_or(-1),
                tp = from.whole("parallelism.tensor_parallel_degree").value_or(1),
                cp = from.whole("parallelism.context_parallel_degree").value_or(1);
  const int64_t dp = shards > 0 ? replicas * shards : 0;
  from.set("parallel.mesh", "{dp: " + (dp > 0 ? std::to_string(dp) : "auto") + ", cp: " + std::to_string(cp) +
                                ", tp: " + std::to_string(tp) + "}");
  from.set_replicas(replicas, std::max<int64_t>(shards, 0), cp);
  if (const auto reshard = from.word("parallelism.fsdp_reshard_after_forward"); reshard == "never") {
    from.set("parallel.fsdp.reshard_after_forward", false);
  }
  from.set_rotation("parallelism.context_parallel_rotate_method", cp);
  if (cp > 1 && !from.is_set("parallel.context.algorithm")) {
    from.set("parallel.context.algorithm", std::string("all_gather"), kTitansDefault);
  }
  if (from.whole("parallelism.pipeline_parallel_degree").value_or(1) > 1) {
    from.refuse("parallelism.pipeline_parallel_degree", "models are not cut into pipeline stages");
  }
  if (from.whole("parallelism.expert_parallel_degree").value_or(1) > 1) {
    from.refuse("parallelism.expert_parallel_degree", "models have no experts");
  }
  from.ignore("parallelism.enable_async_tensor_parallel");  // products and collectives always overlap
  from.ignore("parallelism.disable_loss_parallel");
  from.ignore("parallelism.enable_compiled_autograd");
  return dp;
}

void take_titan_batch(Conversion& from, int64_t dp) {
  const std::optional<int64_t> older = from.whole("training.batch_size"),
                               newer = from.whole("training.local_batch_size");
  const int64_t local = newer.value_or(older.value_or(8)),
                global = from.whole("training.global_batch_size").value_or(-1);
  from.set("train.micro_batch", local, newer || older ? "" : kTitansDefault);
  if (global > 0) {
    from.set("train.global_batch", global);
  } else if (dp > 0) {
    from.set("train.global_batch", local * dp, "local_batch_size x dp");
  } else {
    from.need("train.global_batch", "a batch of " + std::to_string(local) + " on each dp rank there: " +
                                        std::to_string(local) + " x the dp ranks that are started");
  }
}

void take_titan_training(Conversion& from, int64_t steps) {
  from.set("train.steps", steps, from.has("training.steps") ? "" : kTitansDefault);
  const auto length = from.whole("training.seq_len");
  from.set("train.sequence_length", length.value_or(2048), length ? "" : kTitansDefault);
  const auto norm = from.number("training.max_norm");
  from.set("train.clip_norm", norm.value_or(1), norm ? "" : kTitansDefault);
  for (const char* key : {"training.seed", "debug.seed"}) {
    if (const auto seed = from.whole(key)) from.set("train.seed", *seed);
  }
  take_titan_precision(from);
  if (from.is_on("training.enable_cpu_offload")) {
    from.offload_to_host();
  }
  from.ignore("training.enable_cpu_offload");
  from.refuse("training.compile", "nothing is compiled at run time");
  if (from.is_on("compile.enable")) from.refuse("compile.enable", "nothing is compiled at run time");
  from.ignore_in("compile", {"enable", "components", "backend"});
  for (const char* key : {"training.deterministic", "training.gc_freq", "training.gc_debug"}) from.ignore(key);
  const std::string dataset = from.word("training.dataset").value_or("");
  from.ignore("training.dataset_path");
  from.need("data.tokens", "the tokens of " + (dataset.empty() ? "the dataset" : dataset) +
                               ": meshtrain data prepare --text ... --tokenizer ... writes them");
  from.set("data.layout", std::string("stream"));
  const std::string mode = from.word("activation_checkpoint.mode").value_or("selective"),
                    option = from.word("activation_checkpoint.selective_ac_option").value_or("op");
  const bool of_blocks =
      mode == "selective" && !option.empty() && option.find_first_not_of("0123456789") == std::string::npos;
  if (mode == "none" || mode == "full" || mode == "selective") {
    from.set("train.activation_checkpointing.mode", of_blocks ? "full" : mode);
  } else {
    from.refuse("activation_checkpoint.mode", "train.activation_checkpointing.mode has none, full and selective");
  }
  if (of_blocks) from.set("train.activation_checkpointing.every", static_cast<int64_t>(std::stol(option.substr(0, 9))));
  from.ignore_in("activation_checkpoint",
                 {"per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop", "preserve_rng_state",
                  "determinism_check", "visualize_memory_budget_pareto", "debug"});
}

void take_titan_record(Conversion& from, int64_t steps) {
  if (const auto every = from.whole("metrics.log_freq")) from.set("train.log_every", *every);
  if (from.is_on("metrics.enable_tensorboard")) from.set("train.tensorboard", true);
  from.refuse("metrics.enable_wandb", "tools/send_metrics sends RUN_DIR/metrics.jsonl");
  from.ignore_in("metrics", {"enable_tensorboard", "disable_color_printing", "save_tb_folder", "save_for_all_ranks",
                             "rank_0_only"});
  const int64_t first = from.whole("profiling.profile_freq").value_or(10);
  if (from.is_on("profiling.enable_profiling") && first <= steps) {
    from.set("train.profile.from", first, "one trace, not one every profile_freq steps");
  }
  from.ignore_in("profiling", {"enable_profiling", "profile_freq", "save_traces_folder", "profiler_active",
                               "profiler_warmup", "enable_memory_snapshot", "save_memory_snapshot_folder"});
  if (from.is_on("checkpoint.enable_checkpoint") || from.is_on("checkpoint.enable")) {
    from.set("checkpoint.every", from.whole("checkpoint.interval").value_or(500));
    if (const auto last = from.whole("checkpoint.keep_latest_k"); last && *last > 0) {
      from.set("checkpoint.keep_last", *last);
    }
    from.refuse("checkpoint.initial_load_path", "meshtrain checkpoint import begins a run with weights");
  }
  from.ignore_in("checkpoint",
                 {"enable", "enable_checkpoint", "folder", "interval", "interval_type", "keep_latest_k", "async_mode",
                  "export_dtype", "model_weights_only", "last_save_model_weights_only", "last_save_model_only",
                  "create_seed_checkpoint", "load_step", "exclude_from_loading", "enable_first_step_checkpoint"});
  if (from.is_on("validation.enable") || from.is_on("validation.enabled")) {
    from.refuse("validation.freq", "set evaluate.every to it, and evaluate.tokens to a file");
  }
  from.ignore_in("validation",
                 {"enable", "enabled", "freq", "dataset", "dataset_path", "local_batch_size", "seq_len", "steps"});
  from.refuse("job.dump_folder", "it is an option: --run-dir");
  from.refuse("job.custom_config_module", "there is no code of one's own");
  from.ignore_in("job", {"config_file", "description", "print_args", "print_config", "save_config_file",
                         "use_for_integration_test"});
}

}  // namespace

void convert_torchtitan(Conversion& from) {
  const int64_t steps = std::max<int64_t>(from.whole("training.steps").value_or(10000), 1);
  take_titan_model(from);
  take_titan_batch(from, take_titan_parallelism(from));
  take_titan_training(from, steps);
  take_titan_optimizer(from);
  take_titan_schedule(from, steps);
  take_titan_record(from, steps);
}

}  // namespace meshtrain

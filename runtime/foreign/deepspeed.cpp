#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/foreign/conversion.h"
#include "runtime/foreign/foreign_config.h"
#include "runtime/yaml/scalar_text.h"

namespace meshtrain {
namespace {

// The Trainer of transformers fills in its own argument where a value is "auto": the names and defaults below are those
// of transformers.TrainingArguments, as its integrations/deepspeed.py fills them in.

void take_deepspeed_batches(Conversion& from) {
  const char *const global_key = "train_batch_size", *const micro_key = "train_micro_batch_size_per_gpu",
                    *const accumulation_key = "gradient_accumulation_steps";
  const std::optional<int64_t> global = from.whole(global_key), micro = from.whole(micro_key),
                               accumulation = from.whole(accumulation_key);
  if (global) from.set("train.global_batch", *global);
  if (micro) from.set("train.micro_batch", *micro);
  if (global && !micro && accumulation) {
    from.need("train.micro_batch", std::to_string(*global) + " / (" + std::to_string(*accumulation) +
                                       " x the dp ranks): without it 1 at once");
  }
  from.need_filled_in("train.micro_batch", {micro_key}, "the Trainer's per_device_train_batch_size (by default 8)",
                      "1");
  if (global) return from.ignore(accumulation_key);  // it follows from the batches
  const std::string of_rank = micro ? std::to_string(*micro) : "per_device_train_batch_size",
                    times = accumulation                     ? std::to_string(*accumulation)
                            : from.is_auto(accumulation_key) ? "gradient_accumulation_steps"
                                                             : "1";
  const std::string product = of_rank + " x " + times + " x the dp ranks";
  const bool is_of_trainer = of_rank.starts_with("per_") || times.starts_with("gradient_");
  from.need_filled_in("train.global_batch", {global_key, accumulation_key},
                      (is_of_trainer ? "the Trainer's " : "") + product);
  from.need("train.global_batch", micro ? product : "samples of an update, over all ranks");
}

/// Returns the keys of train.loss_scale and their values, as fp16 has them.
std::vector<std::pair<std::string, double>> deepspeed_loss_scale(Conversion& from) {
  if (const double fixed = from.number("fp16.loss_scale").value_or(0); fixed > 0) return {{"static", fixed}};
  const double initial = std::exp2(std::clamp(from.number("fp16.initial_scale_power").value_or(16), 0.0, 100.0));
  std::vector<std::pair<std::string, double>> keys = {{"initial", initial}};
  if (const auto window = from.whole("fp16.loss_scale_window")) {
    keys.emplace_back("growth_interval", static_cast<double>(*window));
  }
  if (const auto least = from.number("fp16.min_loss_scale"); least && *least > 0) {
    keys.emplace_back("min", std::min(*least, initial));
  }
  return keys;
}

/// Lists the precision as still to be given where the Trainer chooses it.
void need_deepspeed_precision(Conversion& from) {
  std::string scale;
  if (from.is_auto("fp16.enabled")) {
    for (const auto& [key, value] : deepspeed_loss_scale(from)) {
      scale += (scale.empty() ? "" : ", ") + key + ": " + scalar_text(value);
    }
    scale = " (with train.loss_scale: {" + scale + "})";
  }
  from.need_filled_in("train.precision", {"bf16.enabled", "fp16.enabled", "amp.enabled"},
                      "bf16_mixed for the Trainer's bf16, fp16_mixed" + scale + " for its fp16", "fp32");
}

void take_deepspeed_precision(Conversion& from) {
  const bool is_fp16 = from.truth("fp16.enabled").value_or(false);
  if (from.truth("bf16.enabled").value_or(false)) {
    from.set("train.precision", std::string("bf16_mixed"));
  } else if (is_fp16) {
    from.set("train.precision", std::string("fp16_mixed"));
    for (const auto& [key, value] : deepspeed_loss_scale(from)) from.set("train.loss_scale." + key, value);
  }
  if ((is_fp16 || from.is_auto("fp16.enabled")) && from.whole("fp16.hysteresis").value_or(1) > 1) {
    from.refuse("fp16.hysteresis", "the scale shrinks with the first step that overflows");
  }
  if (from.is_on("amp.enabled") || from.is_on("torch_autocast.enabled")) {
    const bool is_half =
        !from.is_on("torch_autocast.enabled") || from.word("torch_autocast.dtype").value_or("bfloat16") == "float16";
    from.set("train.precision", std::string(is_half ? "fp16_mixed" : "bf16_mixed"),
             "weights and activations are in the half, where autocast chooses by operator");
  }
  if (from.is_on("fp8.enabled")) {
    from.set("train.precision", std::string("bf16_mixed"), "there is no FP8");
    from.refuse("fp8", "there is no FP8: layers compute in bf16, with train.precision: bf16_mixed");
  }
  need_deepspeed_precision(from);
  for (const char* map : {"fp16", "bf16", "fp8", "amp", "torch_autocast"}) from.ignore(map);
  const std::string reduce = from.word("communication_data_type").value_or("");
  if (reduce == "fp32") from.set("parallel.fsdp.reduce_dtype", reduce);
}

void take_deepspeed_zero(Conversion& from) {
  static const std::map<int64_t, std::string> modes = {
      {0, "no_shard"}, {1, "shard_optimizer"}, {2, "shard_grad_op"}, {3, "full_shard"}};
  const char* const stage_key = "zero_optimization.stage";
  const int64_t stage = from.whole(stage_key).value_or(0);
  if (from.is_auto(stage_key)) {
    from.need_filled_in("parallel.fsdp.mode", {stage_key},
                        "shard_optimizer, shard_grad_op or full_shard for accelerate's zero_stage 1, 2 or 3", "auto");
  } else if (modes.contains(stage)) {
    from.set("parallel.fsdp.mode", modes.at(stage), "ZeRO stage " + std::to_string(stage));
  } else {
    from.refuse(stage_key, "parallel.fsdp.mode has no such stage");
  }
  from.refuse("zero_optimization.zero_hpz_partition_size",
              "parallel.fsdp.mode: hybrid_shard with shard_size is the nearest: it copies gradients and state too");
  for (const char* what :
       {"zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"}) {
    from.refuse(std::string("zero_optimization.") + what, "what is sent is not quantized");
  }
  bool to_host = from.is_on("zero_optimization.cpu_offload");
  for (const char* what : {"offload_optimizer", "offload_param"}) {
    const std::string map = std::string("zero_optimization.") + what;
    const std::string device = from.word(map + ".device").value_or("none");
    to_host = to_host || device == "cpu";
    if (device != "nvme") continue;
    const std::string path = from.word(map + ".nvme_path").value_or("");
    from.set("parallel.fsdp.offload.to", std::string("disk"));
    if (!path.empty()) from.set("parallel.fsdp.offload.path", path);
  }
  if (to_host && !from.is_set("parallel.fsdp.offload.to")) from.offload_to_host();
  from.need_filled_in("parallel.fsdp.offload.to",
                      {"zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"},
                      "host or disk for cpu or nvme of accelerate's offload_optimizer_device and offload_param_device",
                      "none");
  if (!from.is_set("parallel.fsdp.offload.path") && from.is_set("parallel.fsdp.offload.to") && !to_host) {
    from.need("parallel.fsdp.offload.path", "the folder of the ranks' files");
  }
  // Buckets and thresholds: units are gathered and reduced whole.
  from.ignore_in("zero_optimization", {"cpu_offload",
                                       "offload_optimizer",
                                       "offload_param",
                                       "allgather_partitions",
                                       "allgather_bucket_size",
                                       "overlap_comm",
                                       "reduce_scatter",
                                       "reduce_bucket_size",
                                       "contiguous_gradients",
                                       "sub_group_size",
                                       "stage3_max_live_parameters",
                                       "stage3_max_reuse_distance",
                                       "stage3_prefetch_bucket_size",
                                       "stage3_param_persistence_threshold",
                                       "stage3_gather_16bit_weights_on_model_save",
                                       "stage3_gather_fp16_weights_on_model_save",
                                       "round_robin_gradients",
                                       "elastic_checkpoint",
                                       "ignore_unused_parameters",
                                       "legacy_stage1",
                                       "load_from_fp32_weights",
                                       "cpu_offload_params",
                                       "cpu_offload_use_pin_memory",
                                       "grad_partitioned",
                                       "use_multi_rank_bucket_allreduce",
                                       "stage3_use_all_reduce_for_fetch_params",
                                       "stage3_model_persistence_threshold"});
}

/// Sets the mesh: DeepSpeed's tensor parallel ranks are tp, those of its sequence parallel (Ulysses) cp.
void take_deepspeed_mesh(Conversion& from) {
  const int64_t tp = from.whole("tensor_parallel.autotp_size").value_or(from.whole("autotp_size").value_or(1)),
                cp = from.whole("sequence_parallel_size").value_or(1);
  std::string mesh = "{dp: auto";
  if (cp > 1) mesh += ", cp: " + std::to_string(cp);
  if (tp > 1) mesh += ", tp: " + std::to_string(tp);
  from.set("parallel.mesh", mesh + "}");
  if (cp > 1) from.set("parallel.context.algorithm", std::string("ulysses"));
  from.ignore_in("tensor_parallel", {"tp_grain_size", "tp_size"});
  from.refuse("pipeline", "models are not cut into pipeline stages");
}

void take_deepspeed_optimizer(Conversion& from) {
  const std::string type = lower_case(from.word("optimizer.type").value_or(""));
  if (type == "adam" || type == "adamw") {
    from.set("optimizer.name", std::string("adamw"));
    from.ignore_in("optimizer.params", {"adam_w_mode", "torch_adam"});
  } else if (type == "sgd" || type == "muon") {
    from.set("optimizer.name", type);
  } else {
    from.refuse("optimizer.type", "optimizer.name has adamw, sgd and muon");
  }
  const char *const rate_key = "optimizer.params.lr", *const peak_key = "scheduler.params.warmup_max_lr";
  const bool has_peak = from.is_set("optimizer.learning_rate");  // that of the schedule
  if (has_peak) {
    from.ignore(rate_key);
  } else if (const auto rate = from.number(rate_key)) {
    from.set("optimizer.learning_rate", *rate);
  }
  if (const auto eps = from.number("optimizer.params.eps")) from.set("optimizer.eps", *eps);
  const char* const mode = "optimizer.params.adam_w_mode";  // DeepSpeed's Adam is AdamW unless it is false
  const bool is_l2 = type == "adam" && from.has(mode) && !from.is_on(mode);
  if (const auto decay = from.number("optimizer.params.weight_decay")) {
    from.set("optimizer.weight_decay", *decay, is_l2 && *decay > 0 ? Conversion::kDecayOfAdam : "");
  }
  if (const auto momentum = from.number("optimizer.params.momentum"); momentum && type != "adam" && type != "adamw") {
    from.set("optimizer.momentum", *momentum);
  }
  if (const auto betas = from.list("optimizer.params.betas"); betas.size() == 2) {
    from.set("optimizer.betas", "[" + betas[0] + ", " + betas[1] + "]");
  }
  from.refuse("optimizer.params.bias_correction", "adamw always corrects its first steps");
  if (!has_peak) {
    from.need_filled_in("optimizer.learning_rate", {rate_key, peak_key},
                        "the Trainer's learning_rate (by default 5e-05)");
  }
  from.need("optimizer.learning_rate", "of the optimizer that the script makes");
  from.need_filled_in("optimizer.betas", {"optimizer.params.betas"},
                      "the Trainer's adam_beta1 and adam_beta2 (by default [0.9, 0.999])", "[0.9, 0.999]");
  from.need_filled_in("optimizer.eps", {"optimizer.params.eps"}, "the Trainer's adam_epsilon (by default 1e-08)",
                      "1e-08");
  from.need_filled_in("optimizer.weight_decay", {"optimizer.params.weight_decay"},
                      "the Trainer's weight_decay (by default 0)", "0");
}

void take_deepspeed_clipping(Conversion& from) {
  const char* const key = "gradient_clipping";
  const std::optional<double> own = from.number(key), older = from.number("optimizer.params.max_grad_norm");
  if (own || older) {
    from.set("train.clip_norm", own.value_or(older.value_or(0)));
  } else if (from.is_auto(key)) {
    from.set("train.clip_norm", 1.0, "the Trainer's default");
  } else {
    from.set("train.clip_norm", 0.0, "DeepSpeed's default");
  }
  from.need_filled_in("train.clip_norm", {key}, "the Trainer's max_grad_norm (by default 1)");
}

/// Sets the peak of WarmupLR and WarmupDecayLR, which the optimizer's own rate does not change. WarmupCosineLR has no
/// other than the optimizer's.
void take_deepspeed_peak(Conversion& from, const std::string& type) {
  const std::string key = "scheduler.params.warmup_max_lr";
  const std::optional<double> peak = from.number(key);
  if (type == "WarmupCosineLR" || from.is_auto(key)) return;
  const std::string not_that = from.has("optimizer.params.lr") ? ", which optimizer.params.lr does not change" : "";
  from.set("optimizer.learning_rate", peak.value_or(0.001),
           (peak ? "warmup_max_lr of " + type : "DeepSpeed's default of warmup_max_lr in " + type) + not_that);
}

void take_deepspeed_schedule(Conversion& from) {
  const std::string type = from.word("scheduler.type").value_or("");
  const std::string params = "scheduler.params.";
  static const std::map<std::string, std::string> names = {
      {"WarmupLR", "constant"}, {"WarmupDecayLR", "linear"}, {"WarmupCosineLR", "cosine"}};
  if (type.empty()) return;
  if (!names.contains(type)) {
    from.refuse("scheduler", "schedule.name has constant, cosine, linear and wsd");
    return;
  }
  from.set("schedule.name", names.at(type));
  const std::string count = params + "warmup_num_steps";
  const auto warmup = from.whole(count);
  const bool is_log = from.word(params + "warmup_type").value_or("log") == "log";
  if (warmup || from.is_auto(count)) {
    from.set("schedule.warmup_steps", warmup.value_or(0),
             is_log ? "linear; DeepSpeed's warm-up is logarithmic by default" : "");
  }
  from.need_filled_in("schedule.warmup_steps", {"scheduler.params.warmup_num_steps"},
                      "the Trainer's warmup_steps, or its warmup_ratio x train.steps (by default 0)", "0");
  from.need_filled_in("schedule.total_steps", {"scheduler.params.total_num_steps"},
                      "the number of updates that the Trainer makes, its max_steps", "train.steps");
  if (const auto total = from.whole(params + "total_num_steps")) from.set("schedule.total_steps", *total);
  if (const auto least = from.number(params + "cos_min_ratio")) from.set("schedule.min_ratio", *least);
  take_deepspeed_peak(from, type);
  if (const std::string least = params + "warmup_min_lr"; from.is_auto(least) || from.number(least).value_or(0) > 0) {
    from.refuse(least, "a warm-up begins at peak / warmup_steps");
  }
}

}  // namespace

void convert_deepspeed(Conversion& from) {
  take_deepspeed_batches(from);
  take_deepspeed_precision(from);
  take_deepspeed_zero(from);
  take_deepspeed_mesh(from);
  take_deepspeed_schedule(from);
  take_deepspeed_optimizer(from);
  take_deepspeed_clipping(from);
  if (const auto every = from.whole("steps_per_print"); every && *every > 0) from.set("train.log_every", *every);
  from.refuse("activation_checkpointing", "where the script checkpoints activations: train.activation_checkpointing");
  from.refuse("curriculum_learning", "samples have one length");
  for (const char* key : {"wall_clock_breakdown", "prescale_gradients", "dump_state", "memory_breakdown",
                          "zero_allow_untested_optimizer", "gradient_predivide_factor", "communication_data_type",
                          "zero_force_ds_cpu_optimizer", "flops_profiler", "comms_logger"}) {
    from.ignore(key);
  }
  if (from.is_on("tensorboard.enabled")) from.set("train.tensorboard", true);
  from.ignore("tensorboard");
  const std::string in_script = "in the script that DeepSpeed runs: ";
  from.need_of_script(in_script);
  from.need("train.steps", in_script + "the number of updates");
}

}  // namespace meshtrain

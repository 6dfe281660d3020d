#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mesh/base/files/lower_case.h"
#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/yaml/scalar_text.h"

namespace meshtrain {
namespace {

// Defaults are those of DeepSpeed 0.19.5: deepspeed/runtime/constants.py, precision_config.py, lr_schedules.py,
// engine.py and zero/muon/original_muon.py. The Trainer of transformers fills in its own argument where a value is
// "auto": the names and defaults below are those of transformers.TrainingArguments, as its integrations/deepspeed.py
// fills them in.

void take_deepspeed_batches(Conversion& from) {
  const char *const global_key = "train_batch_size", *const micro_key = "train_micro_batch_size_per_gpu",
                    *const accumulation_key = "gradient_accumulation_steps";
  const std::optional<int64_t> global = from.whole(global_key), micro = from.whole(micro_key),
                               accumulation = from.whole(accumulation_key);
  if (global) from.set("train.global_batch", *global);
  if (micro) from.set("train.micro_batch", *micro);
  if (global && !micro && accumulation) {
    from.need("train.micro_batch", std::to_string(*global) + " / (" + std::to_string(*accumulation) +
                                       " x the dp ranks); until then the recipe has 1");
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
  const double initial = std::exp2(std::clamp(from.number("fp16.initial_scale_power").value_or(16), 0.0, 100.0)),
               least = from.number("fp16.min_loss_scale").value_or(1);
  return {{"initial", initial},
          {"growth_interval", from.number("fp16.loss_scale_window").value_or(1000)},
          {"min", least > 0 ? std::min(least, initial) : 1}};
}

/// Sets the dtype of reductions: `half`, unless communication_data_type has another one.
void take_deepspeed_reduction(Conversion& from, const std::string& half) {
  const char *const path = "communication_data_type", *const key = "parallel.fsdp.reduce_dtype";
  const std::optional<std::string> dtype = from.word(path);
  if (!dtype) return from.set(key, half, from.by_default());
  if (*dtype != "fp32" && *dtype != half) return from.refuse(path, std::string(key) + " has fp32 and " + half);
  from.set(key, *dtype);
}

/// Lists the precision as still to be given where the Trainer chooses it.
void need_deepspeed_precision(Conversion& from) {
  std::string scale;
  if (from.is_auto("fp16.enabled")) {
    for (const auto& [key, value] : deepspeed_loss_scale(from)) {
      scale += (scale.empty() ? "" : ", ") + key + ": " + scalar_text(value);
    }
    scale = ", and train.loss_scale: {" + scale + "}";
  }
  from.need_filled_in("train.precision", {"bf16.enabled", "fp16.enabled", "amp.enabled"},
                      "bf16_mixed for the Trainer's bf16, fp16_mixed for its fp16 (with parallel.fsdp.reduce_dtype: "
                      "bf16 or fp16" +
                          scale + ")",
                      "fp32");
}

void take_deepspeed_precision(Conversion& from) {
  if (from.truth("bf16.enabled").value_or(false)) {
    from.set("train.precision", std::string("bf16_mixed"));
    take_deepspeed_reduction(from, "bf16");
  } else if (from.truth("fp16.enabled").value_or(false)) {
    from.set("train.precision", std::string("fp16_mixed"));
    for (const auto& [key, value] : deepspeed_loss_scale(from)) from.set("train.loss_scale." + key, value);
    const int64_t hysteresis = from.whole("fp16.hysteresis").value_or(2);
    if (hysteresis > 1 && !from.is_set("train.loss_scale.static")) {
      from.refuse_absent("fp16.hysteresis: " + std::to_string(hysteresis) +
                         ": meshtrain shrinks the scale at the first overflow, so different steps are skipped");
    }
    take_deepspeed_reduction(from, "fp16");
  }
  if (from.is_on("amp.enabled") || from.is_on("torch_autocast.enabled")) {
    const bool is_half =
        !from.is_on("torch_autocast.enabled") || from.word("torch_autocast.dtype").value_or("bfloat16") == "float16";
    from.set("train.precision", std::string(is_half ? "fp16_mixed" : "bf16_mixed"),
             "all weights and activations are in half precision; autocast chooses for each operator");
    from.set("train.residual_dtype", std::string("fp32"), "as under autocast");
  }
  if (from.is_on("fp8.enabled")) {
    from.set("train.precision", std::string("bf16_mixed"), "FP8 is not supported");
    from.refuse("fp8", "FP8 is not supported: layers compute in bf16, with train.precision: bf16_mixed");
  }
  need_deepspeed_precision(from);
  for (const char* map : {"bf16", "fp16"}) {
    for (const char* key : {"_master_weights_and_grads", "_optimizer_states"}) {
      from.refuse(std::string(map) + "." + map + key, "weights and state of the optimizer are in fp32");
    }
  }
  from.ignore_all("fp16 bf16 fp8 amp torch_autocast");
  from.refuse("data_types", "gradients are added up in parallel.fsdp.reduce_dtype");
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
  from.leave_out("zero_optimization.zero_hpz_partition_size",
                 "parallel.fsdp.mode: hybrid_shard with shard_size is the nearest: it copies gradients and state too");
  for (const char* what :
       {"zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"}) {
    from.refuse(std::string("zero_optimization.") + what, "communication is not quantized");
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
  // Buckets and thresholds: units are gathered and reduced in full.
  from.ignore_all(
      "cpu_offload offload_optimizer offload_param allgather_partitions allgather_bucket_size overlap_comm "
      "reduce_scatter reduce_bucket_size contiguous_gradients sub_group_size stage3_max_live_parameters "
      "stage3_max_reuse_distance stage3_prefetch_bucket_size stage3_param_persistence_threshold "
      "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save round_robin_gradients "
      "elastic_checkpoint ignore_unused_parameters legacy_stage1 load_from_fp32_weights cpu_offload_params "
      "cpu_offload_use_pin_memory grad_partitioned use_multi_rank_bucket_allreduce "
      "stage3_use_all_reduce_for_fetch_params stage3_model_persistence_threshold",
      "zero_optimization.");
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
  from.ignore_all("tp_grain_size tp_size", "tensor_parallel.");
  from.leave_out("pipeline", "set parallel.mesh.pp to the number of its stages");
}

/// Takes Muon and the AdamW of the other parameters. A schedule's peak is the learning rate of both.
void take_deepspeed_muon(Conversion& from, bool has_peak) {
  const std::string params = "optimizer.params.";
  const std::optional<double> both = from.number(params + "lr"), muon = from.number(params + "muon_lr"),
                              adam = from.number(params + "adam_lr");
  const bool is_open = has_peak || from.is_auto(params + "lr");
  if (!has_peak && (muon || !is_open)) {
    from.set("optimizer.learning_rate", muon ? *muon : both.value_or(0.02), muon || both ? "" : from.by_default());
  }
  if (!has_peak && (adam || !is_open)) {
    from.set("optimizer.muon.adamw_learning_rate", adam ? *adam : both.value_or(3e-4),
             adam || both ? "" : from.by_default());
  }
  from.set("optimizer.muon.scale", std::string("original"), from.by_default());
  from.set("optimizer.muon.nesterov", true, from.by_default());
  from.set("optimizer.muon.coefficients", std::string("simple"), from.by_default());
  from.set("optimizer.muon.newton_schulz_steps", int64_t{5}, from.by_default());
  from.set_number(params + "momentum", "optimizer.momentum", 0.95);
  from.set_number(params + "eps", "optimizer.eps", 1e-10);
  from.ignore(params + "ns_method");  // gram and standard compute the same polynomial
  if (from.whole("zero_optimization.stage").value_or(1) == 0) {
    from.refuse_absent(
        "zero_optimization.stage: 0: without ZeRO, DeepSpeed does not orthogonalise the updates of matrices");
  }
}

void take_deepspeed_optimizer(Conversion& from) {
  const std::string type = lower_case(from.word("optimizer.type").value_or("")), params = "optimizer.params.";
  const bool is_adam = type == "adam" || type == "adamw";
  if (is_adam || type == "sgd" || type == "muon") {
    from.set("optimizer.name", is_adam ? std::string("adamw") : type);
  } else {
    from.refuse("optimizer.type", "optimizer.name has adamw, sgd and muon");
  }
  const std::string rate_key = params + "lr";
  const bool has_peak = from.is_set("optimizer.learning_rate");  // that of the schedule
  if (type == "muon") {
    take_deepspeed_muon(from, has_peak);
  } else if (!has_peak && !type.empty() && !from.is_auto(rate_key)) {
    from.set_number(rate_key, "optimizer.learning_rate", 0.001);
  }
  if (has_peak) {
    from.ignore_all("lr muon_lr adam_lr", params);
  }
  if (!type.empty()) {
    const bool is_torch = from.is_on(params + "torch_adam"),
               is_l2 = type == "adam" && from.has(params + "adam_w_mode") && !from.is_on(params + "adam_w_mode");
    const double decay =
        from.set_number(params + "weight_decay", "optimizer.weight_decay", is_adam && is_torch && !is_l2 ? 0.01 : 0);
    if (is_l2 && decay > 0) {
      from.refuse_absent(params +
                         "adam_w_mode: false: Adam adds the decay to gradients (L2), meshtrain's adamw does not");
    }
    if (decay > 0 || from.is_auto(params + "weight_decay")) {
      from.need("optimizer.decay",
                "matrices for transformers' Trainer, which leaves norms and biases out; all for a script that gives "
                "DeepSpeed all parameters in one group; until then the recipe has all");
    }
    from.ignore_all("adam_w_mode torch_adam", params);
  }
  if (is_adam) from.set_number(params + "eps", "optimizer.eps", 1e-8);
  if (type == "sgd") from.set_number(params + "momentum", "optimizer.momentum", 0);
  if (const auto betas = from.list(params + "betas"); betas.size() == 2) {
    from.set("optimizer.betas", "[" + betas[0] + ", " + betas[1] + "]");
  } else if (is_adam || type == "muon") {
    from.set("optimizer.betas", std::string(is_adam ? "[0.9, 0.999]" : "[0.9, 0.95]"), from.by_default());
  }
  if (from.has(params + "bias_correction") && !from.is_on(params + "bias_correction")) {
    from.refuse_absent(params + "bias_correction: false: adamw always corrects its first steps");
  }
  from.ignore(params + "bias_correction");
  if (!has_peak) {
    from.need_filled_in("optimizer.learning_rate", {"optimizer.params.lr", "scheduler.params.warmup_max_lr"},
                        "the Trainer's learning_rate (by default 5e-05)");
  }
  from.need("optimizer.learning_rate", "that of the optimizer in the script");
  from.need_filled_in("optimizer.betas", {"optimizer.params.betas"},
                      "the Trainer's adam_beta1 and adam_beta2 (by default [0.9, 0.999])", "[0.9, 0.999]");
  from.need_filled_in("optimizer.eps", {"optimizer.params.eps"}, "the Trainer's adam_epsilon (by default 1e-08)",
                      "1e-08");
  from.need_filled_in("optimizer.weight_decay", {"optimizer.params.weight_decay"},
                      "the Trainer's weight_decay (by default 0)", "0");
}

void take_deepspeed_clipping(Conversion& from) {
  const char *const key = "gradient_clipping", *const older = "optimizer.params.max_grad_norm";
  double norm = 1;
  if (from.is_auto(key)) {
    from.set("train.clip_norm", norm, "the Trainer's default");
  } else if (from.has(older) && !from.has(key)) {
    norm = from.set_number(older, "train.clip_norm", norm);
  } else {
    norm = from.number(key).value_or(norm);
    from.set("train.clip_norm", norm, from.has(key) ? "" : from.by_default() + "; 0 before 0.19.3");
  }
  from.ignore(older);
  from.need_filled_in("train.clip_norm", {key}, "the Trainer's max_grad_norm (by default 1)");
  if (norm > 0 && lower_case(from.word("optimizer.type").value_or("")) == "muon") {
    from.refuse_absent("gradient_clipping: " + scalar_text(norm) +
                       ": DeepSpeed clips the orthogonal updates of Muon, meshtrain the gradients before them");
  }
}

/// Sets the peak when the schedule has its own, which replaces the optimizer's learning rate: WarmupLR with
/// warmup_max_lr, and always WarmupDecayLR, where warmup_max_lr has a default. Returns the schedule's peak, else the
/// optimizer's learning rate, else 0.
double take_deepspeed_peak(Conversion& from, const std::string& type) {
  const std::string key = "scheduler.params.warmup_max_lr";
  const std::optional<double> peak = from.number(key);
  const bool has_own = type != "WarmupCosineLR" && (peak || type == "WarmupDecayLR") && !from.is_auto(key);
  if (!has_own) return from.number("optimizer.params.lr").value_or(0);
  const std::string not_that = from.has("optimizer.params.lr") ? ", and optimizer.params.lr has no effect" : "";
  from.set("optimizer.learning_rate", peak.value_or(0.001),
           (peak ? "warmup_max_lr of " + type : from.by_default() + ", warmup_max_lr of " + type) + not_that);
  return peak.value_or(0.001);
}

/// Takes a schedule of DeepSpeed, which begins with the second step: the first two have the first rate of the warm-up.
void take_deepspeed_schedule(Conversion& from) {
  const std::string type = from.word("scheduler.type").value_or("");
  const std::string params = "scheduler.params.";
  static const std::map<std::string, std::string> names = {
      {"WarmupLR", "constant"}, {"WarmupDecayLR", "linear"}, {"WarmupCosineLR", "cosine"}};
  if (type.empty()) return;
  if (!names.contains(type)) return from.refuse("scheduler", "schedule.name has constant, cosine, linear and wsd");
  from.set("schedule.name", names.at(type));
  from.set("schedule.delay", int64_t{1}, "DeepSpeed's first two steps have one rate");
  const std::string count = params + "warmup_num_steps";
  if (from.is_auto(count)) {
    from.set("schedule.warmup_steps", int64_t{2}, "DeepSpeed's minimum");
    from.need_filled_in("schedule.warmup_steps", {"scheduler.params.warmup_num_steps"},
                        "the Trainer's warmup_steps, or its warmup_ratio x train.steps (by default 0), at least 2");
  } else {
    const auto steps = from.whole(count);
    from.set("schedule.warmup_steps", std::max<int64_t>(steps.value_or(1000), 2), steps ? "" : from.by_default());
  }
  const auto shape = from.word(params + "warmup_type");
  from.set("schedule.warmup_shape", std::string(shape == "linear" ? "linear" : "log"), shape ? "" : from.by_default());
  const double peak = take_deepspeed_peak(from, type);
  const std::string least = params + "warmup_min_lr", ratio = params + "warmup_min_ratio";
  const double first = from.number(least).value_or(0);
  from.set("schedule.first_ratio",
           type == "WarmupCosineLR" ? from.number(ratio).value_or(0)
           : peak > 0               ? first / peak
                                    : 0.0,
           from.has(least) || from.has(ratio) ? "" : from.by_default());
  if (first > 0 && peak <= 0) from.refuse(least, "schedule.first_ratio is it / optimizer.learning_rate");
  if (from.is_auto(least)) from.ignore(least);  // the Trainer's is 0
  from.need_filled_in("schedule.total_steps", {"scheduler.params.total_num_steps"},
                      "the number of updates that the Trainer makes, its max_steps", "train.steps");
  if (const auto total = from.whole(params + "total_num_steps")) from.set("schedule.total_steps", *total);
  if (type == "WarmupDecayLR" && first > 0 && peak > 0) {
    from.set("schedule.min_ratio", first / peak, "the decay ends at warmup_min_lr");
  }
  if (type == "WarmupCosineLR") {
    from.set_number(params + "cos_min_ratio", "schedule.min_ratio", 0.0001);
    from.refuse_absent("scheduler.type: WarmupCosineLR: the decay of the recipe is one step later");
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
  from.leave_out("activation_checkpointing",
                 "where the script checkpoints activations: train.activation_checkpointing");
  from.refuse("curriculum_learning", "samples have one length");
  from.ignore_all(
      "wall_clock_breakdown prescale_gradients dump_state memory_breakdown zero_allow_untested_optimizer "
      "gradient_predivide_factor communication_data_type zero_force_ds_cpu_optimizer flops_profiler comms_logger "
      "steps_per_print autotuning wandb csv_monitor comet checkpoint aio timers compile log_level "
      "seq_parallel_communication_data_type");
  if (from.is_on("tensorboard.enabled")) from.set("train.tensorboard", true);
  from.ignore("tensorboard");
  const std::string in_script = "in the script that DeepSpeed runs: ";
  from.need_of_script(in_script);
  from.need("train.steps", in_script + "the number of updates");
  if (!from.has("optimizer")) {
    for (const char* key : {"optimizer.betas", "optimizer.eps", "optimizer.weight_decay"}) {
      from.need(key, in_script + "that of its optimizer; until then the recipe has its default");
    }
  }
  if (!from.has("scheduler")) {
    from.need("schedule.name",
              in_script + "its schedule, and schedule.warmup_steps; until then the recipe has constant");
  }
}

}  // namespace meshtrain

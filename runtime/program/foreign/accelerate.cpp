#include <algorithm>
#include <map>
#include <string>

#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/foreign_config.h"

namespace meshtrain {
namespace {

// Defaults are those of accelerate 1.14.0: accelerate/utils/dataclasses.py and parallelism_config.py.
const char* const kAccumulation = "set train.global_batch to it x dp x train.micro_batch";

const std::map<std::string, std::string> kPrecisions = {{"no", "fp32"}, {"bf16", "bf16_mixed"}, {"fp16", "fp16_mixed"}};
const std::map<std::string, std::string> kModes = {
    {"FULL_SHARD", "full_shard"}, {"1", "full_shard"}, {"SHARD_GRAD_OP", "shard_grad_op"}, {"2", "shard_grad_op"},
    {"NO_SHARD", "no_shard"},     {"3", "no_shard"},   {"HYBRID_SHARD", "hybrid_shard"},   {"4", "hybrid_shard"}};
const std::map<std::string, std::string> kStages = {
    {"0", "no_shard"}, {"1", "shard_optimizer"}, {"2", "shard_grad_op"}, {"3", "full_shard"}};

/// Sets the mesh and, when the configuration has its sizes, the mode and shard size of FSDP. One replica's ranks are
/// its shards x the context-parallel ranks.
void take_accelerate_mesh(Conversion& from) {
  const std::string prefix = "parallelism_config.parallelism_config_",
                    of_megatron = "megatron_lm_config.megatron_lm_context_parallel_size";
  const int64_t replicas = from.whole(prefix + "dp_replicate_size").value_or(1),
                shards = from.whole(prefix + "dp_shard_size").value_or(1),
                megatron_tp = from.whole("megatron_lm_config.megatron_lm_tp_degree").value_or(1),
                tp = from.whole(prefix + "tp_size").value_or(megatron_tp),
                sp = from.whole(prefix + "sp_size").value_or(1),
                megatron_cp = from.whole(of_megatron).value_or(from.has("megatron_lm_config") ? 2 : 1),
                cp = std::max({from.whole(prefix + "cp_size").value_or(1), sp, megatron_cp}),
                pp = from.whole("megatron_lm_config.megatron_lm_pp_degree").value_or(1);
  const std::optional<int64_t> ranks = from.whole("num_processes");
  const bool has_mesh = from.has("parallelism_config");
  const std::string dp = has_mesh ? std::to_string(replicas * shards)
                         : ranks  ? std::to_string(*ranks / (pp * tp * cp))
                                  : "auto";
  from.set("parallel.mesh",
           (pp > 1 ? "{pp: " + std::to_string(pp) + ", dp: " : "{dp: ") + dp + ", cp: " + std::to_string(cp) +
               ", tp: " + std::to_string(tp) + "}",
           megatron_cp > 1 && !from.has(of_megatron) ? "cp: " + from.by_default() : "");
  if (has_mesh) {
    const bool is_shared = shards * cp > 1;
    from.set("parallel.fsdp.mode", std::string(!is_shared ? "no_shard" : replicas > 1 ? "hybrid_shard" : "full_shard"));
    if (is_shared && replicas > 1) {
      from.set("parallel.fsdp.shard_size", shards * cp, cp > 1 ? "data-parallel shards x cp" : "");
    }
  }
  const std::string rotation_key = prefix + "cp_comm_strategy";
  const std::optional<std::string> rotation = from.word(rotation_key);
  const bool gathers = rotation.value_or("allgather") == "allgather";
  if (!gathers && *rotation != "alltoall") {
    from.leave_out(rotation_key, "parallel.context.algorithm has all_gather and ring");
  } else if (cp > 1) {
    from.set("parallel.context.algorithm",
             std::string(sp > 1                       ? "ulysses"
                         : gathers && megatron_cp < 2 ? "all_gather"
                                                      : "ring"),
             rotation || sp > 1 ? "" : from.by_default());
  } else if (!gathers) {
    from.leave_out(rotation_key, "cp is 1: there is nothing to exchange");
  }
  from.ignore_all("cp_backend sp_backend", prefix);
}

void take_accelerate_fsdp(Conversion& from) {
  const std::string prefix = "fsdp_config.fsdp_";
  if (const auto strategy = from.word(prefix + "sharding_strategy")) {
    const auto known = kModes.find(*strategy);
    if (known == kModes.end()) {
      from.refuse(prefix + "sharding_strategy", "parallel.fsdp.mode has no such mode");
    } else if (from.is_set("parallel.fsdp.shard_size")) {
      if (known->second != "full_shard" && known->second != "hybrid_shard") {
        from.refuse(prefix + "sharding_strategy", "parallelism_config has replicas, which only hybrid_shard supports");
      }
    } else {
      from.set("parallel.fsdp.mode", known->second);
    }
  }
  const std::string reshard = from.word(prefix + "reshard_after_forward").value_or("true");
  if (kModes.contains(reshard)) {  // an older name of the strategy
    from.set("parallel.fsdp.mode", kModes.at(reshard));
  } else {
    if (!from.is_set("parallel.fsdp.mode")) from.set("parallel.fsdp.mode", std::string("full_shard"));
    if (reshard == "false" || reshard == "False") from.set("parallel.fsdp.reshard_after_forward", false);
  }
  if (from.is_on(prefix + "activation_checkpointing")) {
    from.set("train.activation_checkpointing.mode", std::string("full"));
  }
  if (from.is_on(prefix + "offload_params")) from.offload_to_host();
  // How modules are found, loaded and saved has no choice here.
  from.ignore_all(
      "fsdp_activation_checkpointing fsdp_offload_params fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap "
      "fsdp_min_num_params fsdp_backward_prefetch fsdp_backward_prefetch_policy fsdp_forward_prefetch "
      "fsdp_cpu_ram_efficient_loading fsdp_state_dict_type fsdp_sync_module_states fsdp_use_orig_params fsdp_version",
      "fsdp_config.");
}

void convert_deepspeed_of_accelerate(Conversion& from) {
  const std::string prefix = "deepspeed_config.", file = prefix + "deepspeed_config_file";
  const bool has_file = from.has(file);
  from.refuse(file, "convert that file too: meshtrain recipe --from");
  const auto stage = from.word(prefix + "zero_stage");
  if (const auto mode = kStages.find(stage.value_or("2")); mode != kStages.end() && (stage || !has_file)) {
    from.set("parallel.fsdp.mode", mode->second, stage ? "" : from.by_default());
  }
  if (from.has(prefix + "gradient_clipping") || !has_file) {
    const auto norm = from.number(prefix + "gradient_clipping");
    from.set("train.clip_norm", norm.value_or(1), norm ? "" : from.by_default());
  }
  for (const char* what : {"offload_optimizer_device", "offload_param_device"}) {
    const std::string device = from.word(prefix + what).value_or("none");
    if (device == "cpu") from.offload_to_host();
    if (device == "nvme") from.leave_out(prefix + what, "set parallel.fsdp.offload.to: disk and its path");
  }
  from.leave_out(prefix + "gradient_accumulation_steps", kAccumulation);
  from.ignore_all(
      "offload_optimizer_device offload_param_device zero3_init_flag zero3_save_16bit_model "
      "deepspeed_multinode_launcher deepspeed_hostfile deepspeed_inclusion_filter deepspeed_exclusion_filter "
      "deepspeed_moe_layer_cls_names",
      "deepspeed_config.");
}

/// Sets the precision. FSDP and DeepSpeed reduce gradients in the 16-bit dtype; without them autocast keeps the
/// residual stream in fp32.
void take_accelerate_precision(Conversion& from) {
  const std::string given = from.word("mixed_precision").value_or("no"), half = given == "fp16" ? "fp16" : "bf16";
  const auto known = kPrecisions.find(given == "fp8" ? "bf16" : given);
  if (known == kPrecisions.end()) return from.refuse("mixed_precision", "train.precision has no " + given);
  from.set("train.precision", known->second, from.has("mixed_precision") ? "" : from.by_default());
  if (given == "fp8") from.refuse("mixed_precision", "FP8 is not supported: layers compute in bf16, with bf16_mixed");
  if (given == "no") return;
  const bool is_deepspeed = from.has("deepspeed_config");
  if (from.has("megatron_lm_config")) return;
  if (is_deepspeed || from.has("fsdp_config")) {
    from.set("parallel.fsdp.reduce_dtype", half, from.by_default());
  } else {
    from.set("train.residual_dtype", std::string("fp32"), "as under autocast");
  }
  if (is_deepspeed && given == "fp16") {
    from.set("train.loss_scale.growth_interval", int64_t{1000}, "the default of DeepSpeed");
    from.refuse_absent(
        "fp16.hysteresis: 2, the default of DeepSpeed: meshtrain shrinks the scale at the first overflow, so different "
        "steps are skipped");
  }
}

/// Takes the options that accelerate passes to Megatron-LM, except the tp degree, which is in the mesh.
void take_megatron_of_accelerate(Conversion& from) {
  const std::string prefix = "megatron_lm_config.megatron_lm_";
  from.set_number(prefix + "gradient_clipping", "train.clip_norm", 1);
  from.set("parallel.fsdp.mode",
           std::string(from.is_on(prefix + "use_distributed_optimizer") ? "shard_optimizer" : "no_shard"));
  const auto granularity = from.word(prefix + "recompute_granularity");
  const bool is_selective = granularity == "selective" || from.is_on(prefix + "recompute_activations");
  from.set("train.activation_checkpointing.mode", std::string(is_selective ? "selective" : "full"),
           is_selective || granularity ? "" : from.by_default());
  from.leave_out(prefix + "num_micro_batches", kAccumulation);
  from.ignore_all(
      "use_distributed_optimizer recompute_activations sequence_parallelism recompute_method recompute_num_layers "
      "attention_softmax_in_fp32",
      prefix);
}

}  // namespace

void convert_accelerate(Conversion& from) {
  const std::string type = from.word("distributed_type").value_or("NO");
  take_accelerate_mesh(from);
  take_peft_config(from);
  if (from.has("fsdp_config")) take_accelerate_fsdp(from);
  if (from.has("deepspeed_config")) convert_deepspeed_of_accelerate(from);
  if (from.has("megatron_lm_config")) take_megatron_of_accelerate(from);
  if ((type == "MULTI_GPU" || type == "MULTI_CPU") && !from.is_set("parallel.fsdp.mode")) {
    from.set("parallel.fsdp.mode", std::string("no_shard"), type);
  }
  take_accelerate_precision(from);
  if (const auto norm = from.number("gradient_clipping")) from.set("train.clip_norm", *norm);
  if (from.is_on("use_cpu")) from.set("device", std::string("cpu"));
  from.leave_out("gradient_accumulation_steps", kAccumulation);
  // Keys for other machines, and for a launcher; ours is mpirun or srun.
  from.ignore_all(
      "use_cpu compute_environment debug downcast_bf16 enable_cpu_affinity machine_rank main_training_function "
      "num_machines rdzv_backend same_network main_process_ip main_process_port tpu_env tpu_use_cluster tpu_use_sudo "
      "gpu_ids ipex_config tpu_name tpu_zone command_file commands");
  from.refuse("fp8_config", "FP8 is not supported");
  from.leave_out("dynamo_config", "nothing is compiled at run time");
  const std::string in_script = "in the script that accelerate launches: ";
  from.need_of_script(in_script);
  from.need("train.global_batch", in_script + "the batch on a rank x the dp ranks x accumulation");
  from.need("train.steps", in_script + "the number of updates");
  from.need("optimizer.learning_rate", in_script + "that of its optimizer");
  const std::string of_optimizer = in_script + "that of its optimizer; until then the recipe has ";
  from.need("optimizer.betas", of_optimizer + "[0.9, 0.999]");
  from.need("optimizer.eps", of_optimizer + "1e-8");
  from.need("optimizer.weight_decay", of_optimizer + "0, and AdamW of PyTorch 0.01");
  from.need("schedule.name", in_script + "its schedule, and schedule.warmup_steps; until then the recipe has constant");
  from.need("train.clip_norm", in_script + "its clip_grad_norm_; until then the recipe has 1, and 0 clips nothing");
}

}  // namespace meshtrain

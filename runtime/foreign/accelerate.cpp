#include <map>
#include <string>

#include "runtime/foreign/conversion.h"
#include "runtime/foreign/foreign_config.h"

namespace meshtrain {
namespace {

const std::map<std::string, std::string> kPrecisions = {{"no", "fp32"}, {"bf16", "bf16_mixed"}, {"fp16", "fp16_mixed"}};
const std::map<std::string, std::string> kModes = {
    {"FULL_SHARD", "full_shard"}, {"1", "full_shard"}, {"SHARD_GRAD_OP", "shard_grad_op"}, {"2", "shard_grad_op"},
    {"NO_SHARD", "no_shard"},     {"3", "no_shard"},   {"HYBRID_SHARD", "hybrid_shard"},   {"4", "hybrid_shard"}};
const std::map<std::string, std::string> kStages = {
    {"0", "no_shard"}, {"1", "shard_optimizer"}, {"2", "shard_grad_op"}, {"3", "full_shard"}};

/// Sets the mesh, and how it is cut where the sizes say so.
void take_accelerate_mesh(Conversion& from) {
  const std::string prefix = "parallelism_config.parallelism_config_";
  const int64_t replicas = from.whole(prefix + "dp_replicate_size").value_or(1),
                shards = from.whole(prefix + "dp_shard_size").value_or(1),
                megatron_tp = from.whole("megatron_lm_config.megatron_lm_tp_degree").value_or(1),
                tp = from.whole(prefix + "tp_size").value_or(megatron_tp),
                cp = from.whole(prefix + "cp_size").value_or(1);
  const std::optional<int64_t> ranks = from.whole("num_processes");
  const bool has_mesh = from.has("parallelism_config");
  const std::string dp = has_mesh ? std::to_string(replicas * shards) : ranks ? std::to_string(*ranks / tp) : "auto";
  from.set("parallel.mesh", "{dp: " + dp + ", cp: " + std::to_string(cp) + ", tp: " + std::to_string(tp) + "}");
  if (has_mesh) from.set_replicas(replicas, shards, cp);
  from.set_rotation(prefix + "cp_comm_strategy", cp);
}

void take_accelerate_fsdp(Conversion& from) {
  const std::string prefix = "fsdp_config.fsdp_";
  if (const auto strategy = from.word(prefix + "sharding_strategy")) {
    const auto known = kModes.find(*strategy);
    if (known == kModes.end()) {
      from.refuse(prefix + "sharding_strategy", "parallel.fsdp.mode has no such mode");
    } else if (from.is_set("parallel.fsdp.shard_size")) {
      if (known->second != "full_shard" && known->second != "hybrid_shard") {
        from.refuse(prefix + "sharding_strategy", "replicas, which parallelism_config has, are of hybrid_shard alone");
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
  from.ignore_in("fsdp_config",
                 {"fsdp_activation_checkpointing", "fsdp_offload_params", "fsdp_auto_wrap_policy",
                  "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params", "fsdp_backward_prefetch",
                  "fsdp_backward_prefetch_policy", "fsdp_forward_prefetch", "fsdp_cpu_ram_efficient_loading",
                  "fsdp_state_dict_type", "fsdp_sync_module_states", "fsdp_use_orig_params", "fsdp_version"});
}

void convert_deepspeed_of_accelerate(Conversion& from) {
  const std::string prefix = "deepspeed_config.";
  from.refuse(prefix + "deepspeed_config_file", "convert that file too: meshtrain recipe --from");
  if (const auto stage = from.word(prefix + "zero_stage"); stage && kStages.contains(*stage)) {
    from.set("parallel.fsdp.mode", kStages.at(*stage));
  }
  if (const auto norm = from.number(prefix + "gradient_clipping")) from.set("train.clip_norm", *norm);
  for (const char* what : {"offload_optimizer_device", "offload_param_device"}) {
    const std::string device = from.word(prefix + what).value_or("none");
    if (device == "cpu") from.offload_to_host();
    if (device == "nvme") from.refuse(prefix + what, "set parallel.fsdp.offload.to: disk and its path");
  }
  from.refuse(prefix + "gradient_accumulation_steps", "set train.global_batch to it x dp x train.micro_batch");
  from.ignore_in("deepspeed_config",
                 {"offload_optimizer_device", "offload_param_device", "zero3_init_flag", "zero3_save_16bit_model",
                  "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_inclusion_filter",
                  "deepspeed_exclusion_filter", "deepspeed_moe_layer_cls_names"});
}

}  // namespace

void convert_accelerate(Conversion& from) {
  const std::string type = from.word("distributed_type").value_or("NO");
  take_accelerate_mesh(from);
  if (from.has("fsdp_config")) take_accelerate_fsdp(from);
  if (from.has("deepspeed_config")) convert_deepspeed_of_accelerate(from);
  if ((type == "MULTI_GPU" || type == "MULTI_CPU") && !from.is_set("parallel.fsdp.mode")) {
    from.set("parallel.fsdp.mode", std::string("no_shard"), type);
  }
  if (const auto precision = from.word("mixed_precision")) {
    const auto known = kPrecisions.find(*precision);
    if (*precision == "fp8") {
      from.set("train.precision", std::string("bf16_mixed"), "there is no FP8");
      from.refuse("mixed_precision", "there is no FP8: layers compute in bf16, with train.precision: bf16_mixed");
    } else if (known == kPrecisions.end()) {
      from.refuse("mixed_precision", "train.precision has no " + *precision);
    } else {
      from.set("train.precision", known->second);
    }
  }
  if (from.is_on("use_cpu")) from.set("device", std::string("cpu"));
  const char* const stages = "megatron_lm_config.megatron_lm_pp_degree";
  if (from.whole(stages).value_or(1) > 1) from.refuse(stages, "there are no pipeline stages: these ranks are in dp");
  from.refuse("megatron_lm_config", "of it parallel.mesh has the tp degree, and the rest has no place in a recipe");
  from.refuse("gradient_accumulation_steps", "set train.global_batch to it x dp x train.micro_batch");
  for (const char* key : {"use_cpu",
                          "compute_environment",
                          "debug",
                          "downcast_bf16",
                          "enable_cpu_affinity",
                          "machine_rank",
                          "main_training_function",
                          "num_machines",
                          "rdzv_backend",
                          "same_network",
                          "main_process_ip",
                          "main_process_port",
                          "tpu_env",
                          "tpu_use_cluster",
                          "tpu_use_sudo",
                          "gpu_ids",
                          "ipex_config",
                          "tpu_name",
                          "tpu_zone",
                          "command_file",
                          "commands"}) {
    from.ignore(key);  // of the launcher, which is mpirun or srun here, and of other machines
  }
  from.refuse("fp8_config", "there is no FP8");
  from.refuse("dynamo_config", "nothing is compiled at run time");
  const std::string in_script = "in the script that accelerate launches: ";
  from.need_of_script(in_script);
  from.need("train.global_batch", in_script + "batch on a rank x ranks of dp x accumulation");
  from.need("train.steps", in_script + "the number of updates");
  from.need("optimizer.learning_rate", in_script + "of its optimizer");
  const std::string of_optimizer = in_script + "of its optimizer; until then the recipe has ";
  from.need("optimizer.betas", of_optimizer + "[0.9, 0.999]");
  from.need("optimizer.weight_decay", of_optimizer + "0, and AdamW of PyTorch 0.01");
  from.need("schedule.name", in_script + "its schedule, and schedule.warmup_steps; until then the recipe has constant");
  from.need("train.clip_norm", in_script + "its clip_grad_norm_; until then the recipe has 1, and 0 clips nothing");
}

}  // namespace meshtrain

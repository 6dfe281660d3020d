#include <algorithm>
#include <map>
#include <string>

#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/foreign/meshes.h"

namespace meshtrain {
namespace {

const char* const kKernels = "meshtrain chooses kernels itself";

/// Returns the last part of a `_target_`: "torch.optim.Adam" -> "Adam".
std::string target_of(Conversion& from, const std::string& path) {
  const std::string target = from.word(path + "._target_").value_or("");
  return target.substr(target.rfind('.') + 1);
}

MeshSizes take_automodel_mesh(Conversion& from) {
  const std::string prefix = "distributed.";
  const auto size = [&](const char* key) { return from.whole(prefix + key); };
  MeshSizes sizes;
  sizes.cp = size("cp_size").value_or(1);
  sizes.tp = size("tp_size").value_or(1);
  sizes.pp = size("pp_size").value_or(1);
  sizes.ep = size("ep_size").value_or(1);
  sizes.replicas = size("dp_replicate_size").value_or(1);
  const std::string dp = from.word(prefix + "dp_size").value_or("none");
  if (const auto ranks = dp == "none" || dp == "null" ? std::nullopt : size("dp_size"))
    sizes.shards = *ranks / sizes.replicas;
  set_mesh(from, sizes);
  const std::string strategy = from.word(prefix + "strategy").value_or("fsdp2");
  if (strategy == "ddp") from.set("parallel.fsdp.mode", std::string("no_shard"));
  if (strategy != "ddp" && strategy != "fsdp2" && strategy != "megatron_fsdp") {
    from.refuse(prefix + "strategy", "parallel.fsdp.mode has no such strategy");
  }
  if (sizes.tp > 1) {
    from.set("parallel.sequence_parallel", std::string(from.is_on(prefix + "sequence_parallel") ? "on" : "off"));
  }
  from.ignore(prefix + "sequence_parallel");
  if (sizes.cp > 1) from.set("parallel.context.algorithm", std::string("all_gather"), "torch's context_parallel");
  const std::string defer = from.word(prefix + "defer_fsdp_grad_sync").value_or("true");
  if (defer != "false" && defer != "False") from.set("parallel.fsdp.no_sync", true, from.by_default());
  const std::string reshard = from.word(prefix + "reshard_after_forward").value_or("true");
  if (reshard == "false" || reshard == "False") from.set("parallel.fsdp.reshard_after_forward", false);
  if (from.is_on(prefix + "activation_checkpointing")) {
    from.set("train.activation_checkpointing.mode", std::string("full"));
  }
  if (sizes.pp > 1) {
    const std::string schedule = from.word(prefix + "pipeline.pp_schedule").value_or("1f1b");
    const bool is_interleaved = schedule == "interleaved1f1b";
    if (schedule == "1f1b" || is_interleaved) {
      from.set("parallel.pipeline.schedule", std::string(is_interleaved ? "interleaved" : "1f1b"));
      from.need("parallel.pipeline.stages_per_rank", is_interleaved ? "layers / pp / layers_per_stage" : "1");
    } else {
      from.refuse(prefix + "pipeline.pp_schedule", "parallel.pipeline.schedule has 1f1b, interleaved and zb_h1");
    }
  }
  from.ignore_all(
      "activation_checkpointing enable_async_tensor_parallel enable_fsdp2_prefetch enable_compile "
      "patch_is_packed_sequence pipeline moe use_hf_tp_plan tp_plan fsdp2_backward_prefetch_depth "
      "fsdp2_forward_prefetch_depth backend",
      prefix);
  return sizes;
}

void take_automodel_batch(Conversion& from, const MeshSizes& sizes) {
  const std::string prefix = "step_scheduler.";
  const int64_t micro =
      from.whole(sizes.pp > 1 ? "distributed.pipeline.pp_microbatch_size" : prefix + "local_batch_size").value_or(1);
  from.set("train.micro_batch", micro);
  if (const auto global = from.whole(prefix + "global_batch_size")) from.set("train.global_batch", *global);
  from.need("train.global_batch", "local_batch_size x grad_acc_steps x the ranks of dp");
  if (const auto steps = from.whole(prefix + "max_steps")) from.set("train.steps", *steps);
  from.need("train.steps", from.word(prefix + "num_epochs").value_or("1") + " x samples / train.global_batch");
  const auto every = from.whole(prefix + "ckpt_every_steps");
  const std::string enabled = from.word("checkpoint.enabled").value_or("true");
  if (every && enabled != "false" && enabled != "False") from.set("checkpoint.every", *every);
  from.leave_out(prefix + "val_every_steps", "evaluate.every sets the steps between evaluations of evaluate.tokens");
  from.ignore_all("local_batch_size num_epochs gc_every_steps grad_acc_steps num_workers", prefix);
}

void take_automodel_model(Conversion& from) {
  std::optional<std::string> name;
  for (const char* path : {"model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path"}) {
    if (!name && from.has(path)) name = from.word(path);
  }
  from.need("model.hf", "the folder of " + name.value_or("the model"));
  const bool is_new = target_of(from, "model") == "from_config";
  if (is_new) from.set("model.init", std::string("random"), "from_config");
  const bool is_autocast = from.is_on("autocast.enabled");
  if (is_autocast) {
    from.set("train.precision", std::string("bf16_mixed"));
    from.set("train.residual_dtype", std::string("fp32"), "as under autocast");
  } else {
    const std::string dtype = from.word("model.torch_dtype").value_or("auto");
    const bool is_fp32 = dtype == "fp32" || dtype == "float32";
    from.set("train.precision", std::string(is_fp32 ? "bf16_mixed" : "bf16"),
             is_fp32                         ? "FSDP2's policy computes in bf16"
             : from.has("model.torch_dtype") ? ""
                                             : "the published weights'");
  }
  from.set("parallel.fsdp.reduce_dtype", std::string("fp32"), from.by_default());
  if (from.is_on("model.backend.fake_balanced_gate")) {
    from.refuse("model.backend.fake_balanced_gate", "experts get what their router chooses");
  }
  from.leave_out("model.backend", kKernels);
  from.leave_out("loss_fn", kKernels);
  from.ignore_all(
      "_target_ trust_remote_code attn_implementation use_liger_kernel use_sdpa_patching force_hf "
      "output_hidden_states is_meta_device torch_dtype config._target_ config.trust_remote_code",
      "model.");
  from.ignore_all("autocast.enabled autocast.dtype");
}

void take_automodel_optimizer(Conversion& from) {
  const std::string name = target_of(from, "optimizer");
  if (name == "SGD") {
    from.set("optimizer.name", std::string("sgd"));
  } else if (name.find("Adam") != std::string::npos) {
    from.set("optimizer.name", std::string("adamw"));
  } else {
    from.refuse("optimizer._target_", "optimizer.name has adamw, sgd and muon");
  }
  const double rate = from.number("optimizer.lr").value_or(0);
  from.set("optimizer.learning_rate", rate);
  const std::vector<std::string> betas = from.list("optimizer.betas");
  from.set("optimizer.betas", betas.size() == 2 ? "[" + betas[0] + ", " + betas[1] + "]" : "[0.9, 0.999]",
           betas.size() == 2 ? "" : "torch's default");
  from.set_number("optimizer.eps", "optimizer.eps", 1e-8);
  const double decay = from.set_number("optimizer.weight_decay", "optimizer.weight_decay", name == "AdamW" ? 0.01 : 0);
  if (name == "Adam" && decay > 0 && !from.is_on("optimizer.adam_w_mode")) {
    from.refuse_absent("optimizer: Adam: its weight decay is part of the gradient, that of AdamW is not");
  }
  if (from.has("optimizer.master_weight_bits")) {
    from.refuse("optimizer.master_weight_bits", "trained weights have 32 bits, or the bits of train.precision");
  }
  from.ignore_all("_target_ adam_w_mode fused foreach compress_state_dict capturable master_weights", "optimizer.");
  from.set_number("max_grad_norm.max_norm", "train.clip_norm", from.number("clip_grad_norm.max_norm").value_or(1));
  from.ignore_all("clip_grad_norm max_grad_norm");

  if (!from.has("lr_scheduler")) return from.set("schedule.name", std::string("constant"), from.by_default());
  const std::string style = from.word("lr_scheduler.lr_decay_style").value_or("cosine");
  const bool is_known = style == "cosine" || style == "linear" || style == "constant";
  if (is_known) {
    from.set("schedule.name", style);
  } else {
    from.refuse("lr_scheduler.lr_decay_style", "schedule.name has constant, cosine, linear and wsd");
  }
  if (const auto warmup = from.whole("lr_scheduler.lr_warmup_steps")) {
    from.set("schedule.warmup_steps", *warmup);
    from.set("schedule.first_ratio", from.number("lr_scheduler.init_lr").value_or(0) / std::max(rate, 1e-30));
  }
  if (const auto steps = from.whole("lr_scheduler.lr_decay_steps")) from.set("schedule.total_steps", *steps);
  if (const auto least = from.number("lr_scheduler.min_lr"); least && rate > 0 && style != "constant") {
    from.set("schedule.min_ratio", *least / rate);
  }
}

void take_automodel_data(Conversion& from) {
  const auto packed = from.whole("packed_sequence.packed_sequence_size");
  const bool is_packed = packed && *packed > 0;
  const auto length = is_packed                        ? packed
                      : from.has("dataset.seq_length") ? from.whole("dataset.seq_length")
                                                       : from.whole("dataset.seq_len");
  if (length) from.set("train.sequence_length", *length);
  from.need("train.sequence_length", "the length of its samples: packed_sequence_size and seq_length are absent");
  if (is_packed)
    from.need("data.documents", "the id of the token that ends a text: packed texts do not see each other");
  from.set("data.layout", std::string("stream"), "of meshtrain data prepare --text");
  from.need("data.tokens", "its `dataset`, as meshtrain data prepare --text, or --chat for conversations, writes it");
  if (from.is_on("dataloader.shuffle")) from.set("data.shuffle", true, "in a different order");
  for (const char* key : {"dataset", "dataloader", "packed_sequence"}) {
    from.leave_out(key, "texts become tokens before the run (docs/data.md)");
  }
  for (const char* key : {"validation_dataset", "validation_dataloader"}) {
    from.leave_out(key, "held-out samples are a file of their own, evaluate.tokens");
  }
}

void take_automodel_adapter(Conversion& from) {
  if (!from.has("peft")) return;
  from.set("adapter.rank", from.whole("peft.dim").value_or(8));
  from.set("adapter.alpha", from.whole("peft.alpha").value_or(32));
  if (const auto dropout = from.number("peft.dropout"); dropout && *dropout > 0) from.set("adapter.dropout", *dropout);
  std::string targets = from.is_on("peft.match_all_linear") ? "all-linear" : "";
  for (const std::string& target : from.list("peft.target_modules")) {
    const std::string quoted = target.find('*') == std::string::npos ? target : "\"" + target + "\"";
    targets += (targets.empty() ? "" : ", ") + quoted;
  }
  if (!targets.empty()) from.set("adapter.targets", "[" + targets + "]");
  from.need("adapter.targets", "the layers with adapters");
  from.ignore_all("_target_ match_all_linear use_triton dropout_position lora_A_init lora_dtype", "peft.");
}

}  // namespace

void convert_automodel(Conversion& from) {
  const MeshSizes sizes = take_automodel_mesh(from);
  take_automodel_batch(from, sizes);
  take_automodel_model(from);
  take_automodel_optimizer(from);
  take_automodel_data(from);
  take_automodel_adapter(from);
  const auto seed = from.has("rng.seed") ? from.whole("rng.seed") : from.whole("seed");
  from.set("train.seed", seed.value_or(42), seed ? "" : from.by_default());
  if (const auto minutes = from.number("dist_env.timeout_minutes")) from.set("parallel.timeout", 60 * *minutes);
  from.leave_out("wandb", "tools/send_metrics sends RUN_DIR/metrics.jsonl");
  from.leave_out("fp8", "FP8 is not supported");
  from.refuse("checkpoint.restore_from", "it is an option: --resume");
  from.ignore_all("enabled checkpoint_dir model_save_format save_consolidated is_async", "checkpoint.");
  from.ignore_all("_target_ seed ranked", "rng.");
  from.ignore_all("recipe dist_env.backend dist_env.timeout_minutes benchmark ci compile slurm");
}

}  // namespace meshtrain

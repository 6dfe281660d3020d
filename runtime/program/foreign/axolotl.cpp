#include <algorithm>
#include <map>
#include <string>

#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/foreign/meshes.h"

namespace meshtrain {
namespace {

// Defaults are those of axolotl 0.13 and of transformers' Trainer, which it starts.
const char* const kLoading = "meshtrain chooses kernels and loading itself";

MeshSizes take_axolotl_mesh(Conversion& from) {
  MeshSizes sizes;
  sizes.replicas = from.whole("dp_replicate_size").value_or(1);
  sizes.shards = from.whole("dp_shard_size");
  const int64_t older = from.whole("sequence_parallel_degree").value_or(1),
                newer = from.whole("context_parallel.size").value_or(1);
  sizes.cp = std::max({from.whole("context_parallel_size").value_or(1), older, newer});
  sizes.tp = from.whole("tensor_parallel_size").value_or(1);
  sizes.ep = from.whole("expert_parallel_size").value_or(1);
  if (!sizes.shards && sizes.cp > 1) sizes.shards = 1;
  set_mesh(from, sizes);
  if (sizes.cp > 1) {
    // ring_flash_attn: packed samples gather keys and values (varlen_llama3), others go around a ring (batch_ring).
    const std::string chosen =
        from.word("ring_attn_func").value_or(from.is_on("sample_packing") ? "varlen_llama3" : "");
    const bool gathers = chosen == "varlen_llama3";
    from.set("parallel.context.algorithm", std::string(gathers ? "all_gather" : "ring"), from.by_default());
    if (chosen != "batch_zigzag") from.set("parallel.context.layout", std::string("contiguous"), from.by_default());
    const std::string backend = from.word("context_parallel.backend").value_or("");
    if (backend == "ulysses") from.set("parallel.context.algorithm", backend);
  }
  from.ignore_all("heads_k_stride context_parallel.load_balance context_parallel.ring_impl context_parallel.backend");
  return sizes;
}

void take_axolotl_sharding(Conversion& from) {
  const bool is_fsdp = from.has("fsdp_config") || from.has("fsdp") || from.has("fsdp_version");
  if (!is_fsdp && !from.has("dp_shard_size")) {
    from.set("parallel.fsdp.mode", std::string("no_shard"), "DistributedDataParallel");
  }
  for (const char* prefix : {"fsdp_config.", "fsdp_config.fsdp_"}) {
    const std::string reshard = from.word(std::string(prefix) + "reshard_after_forward").value_or("true");
    if (reshard == "false") from.set("parallel.fsdp.reshard_after_forward", false);
    if (from.is_on(std::string(prefix) + "offload_params")) from.offload_to_host();
    from.ignore_all(
        "offload_params state_dict_type auto_wrap_policy transformer_layer_cls_to_wrap cpu_ram_efficient_loading "
        "sync_module_states use_orig_params activation_checkpointing final_state_dict_type limit_all_gathers "
        "backward_prefetch forward_prefetch",
        prefix);
  }
  from.ignore_all("fsdp fsdp_version");
  from.refuse("deepspeed", "convert that file too: meshtrain recipe --from");
}

void take_axolotl_precision(Conversion& from) {
  const auto is_set = [&](const char* key) { return from.is_on(key) || from.is_auto(key); };
  const bool is_fsdp = from.has("fsdp_config") || from.has("dp_shard_size");
  const bool in_bf16 = is_set("bf16") || is_set("bfloat16"), in_fp16 = is_set("fp16") || is_set("float16");
  from.set("train.precision", std::string(in_bf16 ? "bf16_mixed" : in_fp16 ? "fp16_mixed" : "fp32"));
  if (in_bf16 || in_fp16) {
    if (is_fsdp) {
      from.set("parallel.fsdp.reduce_dtype", std::string(in_bf16 ? "bf16" : "fp16"), "as accelerate does for FSDP2");
    } else {
      from.set("train.residual_dtype", std::string("fp32"), "as under autocast");
    }
  }
  from.ignore_all("bf16 fp16 bfloat16 float16 tf32");
  from.refuse("fp8", "FP8 is not supported");
}

void take_axolotl_optimizer(Conversion& from) {
  const std::string name = from.word("optimizer").value_or("adamw_torch_fused");
  const bool is_adamw = name.starts_with("adamw") || name.starts_with("paged_adamw");
  if (is_adamw || name == "sgd" || name == "muon") {
    from.set("optimizer.name", is_adamw ? std::string("adamw") : name);
  } else {
    from.refuse("optimizer", "optimizer.name has adamw, sgd and muon");
  }
  if (name.find("8bit") != std::string::npos) from.refuse_absent("optimizer: " + name + ": its state has 8 bits");
  if (const auto rate = from.number("learning_rate")) from.set("optimizer.learning_rate", *rate);
  from.need("optimizer.learning_rate", "the configuration has none");
  from.set("optimizer.betas",
           "[" + from.word("adam_beta1").value_or("0.9") + ", " + from.word("adam_beta2").value_or("0.999") + "]",
           from.has("adam_beta1") ? "" : from.by_default());
  from.set_number("adam_epsilon", "optimizer.eps", 1e-8);
  from.set_number("weight_decay", "optimizer.weight_decay", 0);
  from.set("optimizer.decay", std::string("matrices"), "the Trainer's default");
  from.set_number("max_grad_norm", "train.clip_norm", 1);
  from.refuse("optim_args", "options of the optimizer are not converted");
}

void take_axolotl_schedule(Conversion& from, const std::optional<int64_t>& steps) {
  const std::map<std::string, std::string> known = {
      {"cosine", "cosine"}, {"linear", "linear"}, {"constant", "constant"}, {"constant_with_warmup", "constant"}};
  const std::string name = from.word("lr_scheduler").value_or("cosine");
  const auto found = known.find(name);
  if (found == known.end()) {
    from.refuse("lr_scheduler", "schedule.name has constant, cosine, linear and wsd");
  } else {
    from.set("schedule.name", found->second, from.has("lr_scheduler") ? "" : from.by_default());
  }
  if (const auto ratio = from.number("cosine_min_lr_ratio")) from.set("schedule.min_ratio", *ratio);
  const auto warmup = from.whole("warmup_steps");
  const auto ratio = from.number("warmup_ratio");
  if (warmup || ratio) from.set("schedule.first_ratio", int64_t{0}, "the Trainer's warm-up begins at 0");
  if (warmup && name != "constant") from.set("schedule.warmup_steps", *warmup);
  if (ratio && steps && !warmup) {
    from.set("schedule.warmup_steps", static_cast<int64_t>(*ratio * static_cast<double>(*steps)), "warmup_ratio");
  } else if (ratio && !warmup) {
    from.need("schedule.warmup_steps", from.word("warmup_ratio").value_or("") + " x train.steps: warmup_ratio");
  }
  from.refuse("lr_scheduler_kwargs", "options of the schedule are not converted");
}

void take_axolotl_data(Conversion& from) {
  from.set("data.layout", std::string("stream"), "of meshtrain data prepare --text");
  from.need("data.tokens",
            "its `datasets`, as meshtrain data prepare --text, or --chat for conversations, writes them");
  from.ignore_all("datasets test_datasets dataset_prepared_path dataset_processes dataset_num_proc");
  if (const auto length = from.whole("sequence_len")) from.set("train.sequence_length", *length);
  from.need("train.sequence_length", "the configuration has no sequence_len");
  if (from.is_on("sample_packing")) {
    from.need("data.documents", "the id of the token that ends a text: packed samples do not see each other");
  } else {
    from.leave_out("sample_packing", "axolotl pads samples that are shorter than the sequence");
  }
  from.ignore_all(
      "sample_packing sample_packing_eff_est sample_packing_group_size eval_sample_packing "
      "pad_to_sequence_len");
  const char* const prepared = "texts become tokens before the run (docs/data.md)";
  for (const char* key :
       {"chat_template", "chat_template_jinja", "special_tokens", "tokens", "tokenizer_type", "tokenizer_config",
        "min_sample_len", "roles_to_train", "train_on_eos", "default_system_message"}) {
    from.leave_out(key, prepared);
  }
  if (from.has("train_on_inputs") && !from.is_on("train_on_inputs")) {
    from.leave_out("train_on_inputs", "data.loss_mask says which labels count; data prepare --chat writes it");
    from.ignore("train_on_inputs");
  }
  from.ignore("train_on_inputs");
  from.refuse("group_by_length", "samples are in the order of the file, or shuffled");
  for (const char* key : {"val_set_size", "evals_per_epoch", "eval_steps", "eval_strategy", "eval_max_new_tokens"}) {
    from.leave_out(key, "held-out samples are a file of their own, evaluate.tokens");
  }
}

void take_axolotl_record(Conversion& from) {
  if (const auto every = from.whole("logging_steps")) from.set("train.log_every", *every);
  if (const auto every = from.whole("save_steps")) from.set("checkpoint.every", *every);
  if (const auto kept = from.whole("save_total_limit")) {
    if (from.is_set("checkpoint.every")) from.set("checkpoint.keep_last", *kept);
  }
  const auto seed = from.whole("seed");
  from.set("train.seed", seed.value_or(42), seed ? "" : from.by_default());
  from.leave_out("saves_per_epoch", "checkpoint.every is a number of steps");
  from.leave_out("save_strategy", "checkpoint.every is a number of steps");
  from.leave_out("output_dir", "it is an option: --run-dir");
  from.leave_out("resume_from_checkpoint", "it is an option: --resume");
  from.leave_out("auto_resume_from_checkpoints", "it is an option: --resume");
  for (const char* wandb : {"wandb_project", "wandb_entity", "wandb_watch", "wandb_name", "wandb_log_model",
                            "wandb_run_id", "mlflow_tracking_uri", "comet_project_name", "use_tensorboard"}) {
    from.leave_out(wandb, "tools/send_metrics sends RUN_DIR/metrics.jsonl");
  }
  from.leave_out("hub_model_id", "train.export writes a folder");
}

}  // namespace

void convert_axolotl(Conversion& from) {
  const MeshSizes sizes = take_axolotl_mesh(from);
  take_axolotl_sharding(from);
  take_axolotl_precision(from);
  take_axolotl_optimizer(from);
  const std::optional<int64_t> steps = from.whole("max_steps");
  if (steps) from.set("train.steps", *steps);
  from.need("train.steps", from.word("num_epochs").value_or("1") + " x samples / train.global_batch: num_epochs");
  take_axolotl_schedule(from, steps);
  const bool knows_dp = sizes.shards.has_value();
  set_batch(from, from.whole("micro_batch_size").value_or(1), from.whole("gradient_accumulation_steps").value_or(1),
            knows_dp ? sizes.dp() : std::nullopt);
  const std::string checkpointing = from.word("gradient_checkpointing").value_or("false");
  if (checkpointing != "false") from.set("train.activation_checkpointing.mode", std::string("full"));
  if (checkpointing == "offload" || from.has("activation_offloading")) {
    const std::string offload = from.word("activation_offloading").value_or("true");
    if (offload != "false") from.set("train.offload_activations", true);
  }
  from.ignore("gradient_checkpointing_kwargs");
  take_axolotl_data(from);
  take_axolotl_record(from);
  take_axolotl_adapter(from);
  const std::optional<std::string> model = from.word("base_model");
  from.need("model.hf", model ? "the folder of " + *model : "the folder of the base");
  for (const char* key : {"plugins", "tiled_mlp", "torch_compile", "flash_attn_cross_entropy", "flash_attn_rms_norm",
                          "liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy"}) {
    from.leave_out(key, kLoading);
  }
  from.ignore_all(
      "model_type trust_remote_code is_llama_derived_model is_mistral_derived_model strict attn_implementation "
      "flash_attention xformers_attention sdp_attention flex_attention eager_attention s2_attention "
      "early_stopping_patience "
      "local_rank debug tokenizer_use_fast low_cpu_mem_usage revision_of_model hub_strategy ddp_timeout "
      "dataloader_num_workers dataloader_prefetch_factor dataloader_pin_memory experts_implementation");
}

}  // namespace meshtrain

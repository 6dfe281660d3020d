#include "runtime/recipe/foreign_words.h"

#include <map>
#include <string>

namespace meshtrain {
namespace {

using Words = std::vector<std::string>;

/// Our keys, and the words that stand for each: with a dot in that map alone, without one in any.
const std::map<std::string, Words> kWords = {
    {"model", {"architecture", "network"}},
    {"model.hf",
     {"model_path", "model_name_or_path", "model.path", "model.name", "model.name_or_path", "model.pretrained",
      "model.checkpoint", "pretrained_model_name_or_path", "hf_assets_path", "hf_model"}},
    {"model.family", {"model_type", "model.type", "model.arch"}},
    {"model.hidden_size", {"dim", "d_model", "n_embd", "model_dim", "embed_dim"}},
    {"model.num_hidden_layers", {"num_layers", "n_layers", "n_layer", "depth"}},
    {"model.num_attention_heads", {"num_heads", "n_heads", "n_head"}},
    {"model.num_key_value_heads", {"n_kv_heads", "num_kv_heads", "num_query_groups"}},
    {"model.intermediate_size", {"ffn_hidden_size", "ffn_dim", "d_ff", "mlp_dim"}},
    {"model.vocab_size", {"padded_vocab_size"}},
    {"model.rms_norm_eps", {"norm_eps", "layernorm_epsilon"}},
    {"parallel", {"parallelism", "parallelism_config", "distributed"}},
    {"parallel.mesh", {"mesh", "world_size", "nproc", "num_processes", "nproc_per_node"}},
    {"parallel.mesh.tp",
     {"tensor_parallel_degree", "tensor_parallel_size", "tensor_model_parallel_size", "tp_size", "tp_degree"}},
    {"parallel.mesh.cp",
     {"context_parallel_degree", "context_parallel_size", "cp_size", "cp_degree", "sequence_parallel_size"}},
    {"parallel.mesh.dp",
     {"data_parallel_degree", "data_parallel_size", "data_parallel_shard_degree", "dp_size", "dp_shard_size",
      "dp_degree"}},
    {"parallel.fsdp", {"fsdp", "fsdp_config", "zero_optimization"}},
    {"parallel.fsdp.mode",
     {"sharding_strategy", "fsdp_sharding_strategy", "zero_stage", "fsdp.strategy", "parallel.zero", "stage"}},
    {"parallel.fsdp.reshard_after_forward", {"fsdp_reshard_after_forward"}},
    {"parallel.fsdp.offload", {"cpu_offload", "offload_optimizer", "offload_param", "fsdp_offload_params"}},
    {"data", {"dataset", "datasets"}},
    {"data.tokens",
     {"data_path", "data.path", "data.file", "data.dataset", "data.train", "dataset_path", "dataset_name",
      "train_file"}},
    {"data.mixture", {"data.blend", "data.sources", "data.datasets", "data.weights"}},
    {"data.ignore_id", {"ignore_index", "ignored_label", "label_pad_token_id"}},
    {"data.documents", {"eod_token", "eos_token_id", "data.separator", "reset_attention_mask"}},
    {"evaluate", {"validation", "eval"}},
    {"evaluate.tokens", {"eval_dataset", "valid_data_path", "validation_file", "evaluate.path"}},
    {"evaluate.every", {"eval_steps", "eval_interval", "val_interval", "evaluate.interval", "evaluate.freq"}},
    {"evaluate.samples", {"eval_iters", "max_eval_samples", "evaluate.steps"}},
    {"train", {"training", "trainer"}},
    {"train.sequence_length",
     {"seq_len", "seq_length", "max_seq_len", "max_seq_length", "max_length", "block_size", "context_length",
      "sequence_len"}},
    {"train.global_batch", {"train_batch_size", "global_batch_size", "batch_size", "total_batch_size"}},
    {"train.micro_batch",
     {"micro_batch_size", "local_batch_size", "per_device_train_batch_size", "train_micro_batch_size_per_gpu",
      "micro_batch_size_per_gpu", "device_batch_size"}},
    {"train.steps",
     {"max_steps", "train_iters", "num_steps", "total_train_steps", "max_iters", "train_steps", "num_train_steps",
      "max_train_steps", "iterations"}},
    {"train.precision", {"dtype", "mixed_precision", "torch_dtype", "bf16", "fp16", "mixed_precision_param"}},
    {"parallel.fsdp.reduce_dtype", {"mixed_precision_reduce"}},
    {"train.clip_norm",
     {"grad_clip", "max_grad_norm", "gradient_clipping", "clip_grad", "clip_grad_norm", "max_norm",
      "gradient_clip_val"}},
    {"train.loss_scale", {"initial_loss_scale", "loss_scale_window"}},
    {"train.activation_checkpointing",
     {"gradient_checkpointing", "activation_checkpoint", "recompute_granularity", "selective_ac_option", "recompute"}},
    {"train.log_every", {"logging_steps", "log_interval", "log_freq", "steps_per_print"}},
    {"train.export", {"output_dir", "export_folder", "save_model"}},
    {"train.profile", {"profiling", "profiler"}},
    {"train.device_flops", {"peak_flops"}},
    {"train.non_finite", {"skip_nan", "check_for_nan_in_loss_and_grad"}},
    {"optimizer", {"optim", "optimiser"}},
    {"optimizer.learning_rate", {"lr", "max_lr", "peak_lr", "base_lr"}},
    {"optimizer.name", {"optimizer.type", "optimizer_type"}},
    {"optimizer.betas", {"beta1", "beta2", "adam_beta1", "adam_beta2"}},
    {"optimizer.eps", {"epsilon", "adam_epsilon", "adam_eps"}},
    {"optimizer.weight_decay", {"wd", "decay_rate"}},
    {"optimizer.groups", {"param_groups", "parameter_groups"}},
    {"train.freeze", {"frozen", "frozen_parameters", "freeze_layers"}},
    {"schedule", {"lr_scheduler", "scheduler", "lr_schedule"}},
    {"schedule.name", {"lr_scheduler_type", "lr_decay_style", "decay_type", "schedule.type"}},
    {"schedule.warmup_steps", {"warmup", "num_warmup_steps", "lr_warmup_iters", "warmup_num_steps", "warmup_iters"}},
    {"schedule.decay_steps", {"lr_wsd_decay_iters", "num_decay_steps"}},
    {"schedule.total_steps", {"lr_decay_iters", "num_training_steps", "total_num_steps", "schedule.steps"}},
    {"schedule.min_ratio", {"min_lr_ratio", "min_lr_factor", "min_lr_rate", "min_lr"}},
    {"checkpoint", {"checkpointing", "checkpoints"}},
    {"checkpoint.every", {"save_steps", "save_interval", "save_every", "checkpoint.interval", "checkpoint_interval"}},
    {"checkpoint.keep_last", {"save_total_limit", "keep_latest_k"}},
    {"device", {"accelerator", "use_cpu"}},
};

/// Words for what has no key.
const std::vector<ForeignWord> kSentences = {
    {"gradient_accumulation_steps", "they are train.global_batch / (dp x train.micro_batch)"},
    {"gradient_accumulation", "it is train.global_batch / (dp x train.micro_batch)"},
    {"warmup_ratio", "it is a number of steps, schedule.warmup_steps"},
    {"num_epochs", "a run is counted in steps, train.steps: samples of the data x epochs / train.global_batch"},
    {"epochs", "a run is counted in steps, train.steps: samples of the data x epochs / train.global_batch"},
    {"num_train_epochs", "a run is counted in steps, train.steps: samples of the data x epochs / train.global_batch"},
    {"run_dir", "it is an option: --run-dir"},
    {"resume", "it is an option: --resume"},
    {"resume_from_checkpoint", "it is an option: --resume"},
    {"load", "it is an option: --resume"},
    {"tokenizer", "texts become tokens before the run: meshtrain data prepare --text ... --tokenizer ..."},
    {"tokenizer_path", "texts become tokens before the run: meshtrain data prepare --text ... --tokenizer ..."},
    {"tokenizer_name", "texts become tokens before the run: meshtrain data prepare --text ... --tokenizer ..."},
    {"pipeline_parallel_degree", "models are not cut into pipeline stages"},
    {"pipeline_model_parallel_size", "models are not cut into pipeline stages"},
    {"parallel.mesh.pp", "models are not cut into pipeline stages"},
    {"expert_parallel_degree", "models have no experts"},
    {"compile", "nothing is compiled at run time; on GPUs train.cuda_graph records steps"},
    {"flash_attn", "attention is always computed without its matrix of scores"},
    {"use_flash_attn", "attention is always computed without its matrix of scores"},
    {"attn_implementation", "attention is always computed without its matrix of scores"},
};

}  // namespace

const std::vector<ForeignWord>& foreign_words() {
  static const std::vector<ForeignWord> words = [] {
    std::vector<ForeignWord> all = kSentences;
    for (const auto& [key, names] : kWords) {
      for (const std::string& name : names) all.push_back({name, "it is " + key});
    }
    return all;
  }();
  return words;
}

}  // namespace meshtrain

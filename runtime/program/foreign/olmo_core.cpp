#include <algorithm>
#include <map>
#include <string>

#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/foreign/meshes.h"

namespace meshtrain {
namespace {

// The configuration that OLMo-core saves with a run, or its scripts' --dry-run prints: batches are in tokens.

/// Returns the class of the map at `path`: "olmo_core.optim.SkipStepAdamWConfig" -> "SkipStepAdamWConfig".
std::string class_of(Conversion& from, const std::string& path) {
  const std::string name = from.word(path + "._CLASS_").value_or(from.word(path + ".name").value_or(""));
  from.ignore_all("_CLASS_ name", path + ".");
  return name.substr(name.rfind('.') + 1);
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

int64_t degree_of(Conversion& from, const std::string& axis) {
  const int64_t degree = from.whole("train_module." + axis + "_config.degree").value_or(1);
  from.ignore("train_module." + axis + "_config._CLASS_");
  return degree;
}

MeshSizes take_olmo_mesh(Conversion& from) {
  const std::string prefix = "train_module.", dp = prefix + "dp_config.";
  MeshSizes sizes;
  sizes.tp = degree_of(from, "tp");
  sizes.cp = degree_of(from, "cp");
  sizes.pp = degree_of(from, "pp");
  sizes.ep = degree_of(from, "ep");
  const std::string name = from.word(dp + "name").value_or("ddp");
  const auto shards = from.whole(dp + "shard_degree"), replicas = from.whole(dp + "num_replicas");
  sizes.replicas = replicas.value_or(1);
  if (shards && replicas) sizes.shards = *shards;
  set_mesh(from, sizes);
  // Its shards are over shard_degree x cp ranks.
  if (name == "ddp" || (shards && *shards * sizes.cp == 1)) {
    from.set("parallel.fsdp.mode", std::string("no_shard"));
  } else if (name == "hsdp") {
    from.set("parallel.fsdp.mode", std::string("hybrid_shard"));
    if (shards) from.set("parallel.fsdp.shard_size", *shards * sizes.cp, sizes.cp > 1 ? "shard_degree x cp" : "");
  } else {
    from.set("parallel.fsdp.mode", std::string("full_shard"));
  }
  const std::string computes = from.word(dp + "param_dtype").value_or("float32"),
                    reduces = from.word(dp + "reduce_dtype").value_or("float32");
  from.set("train.precision", std::string(computes == "bfloat16" ? "bf16_mixed" : "fp32"));
  if (computes == "bfloat16") {
    from.set("parallel.fsdp.reduce_dtype", std::string(reduces == "bfloat16" ? "bf16" : "fp32"));
  }
  from.ignore_all("_CLASS_ wrapping_strategy prefetch_factor only_dp", dp);
  if (sizes.cp > 1) {
    const std::string balancer = from.word(prefix + "cp_config.load_balancer").value_or("zig_zag"),
                      algorithm = balancer == "llama3"    ? "all_gather"
                                  : balancer == "ulysses" ? "ulysses"
                                                          : "ring";
    from.set("parallel.context.algorithm", algorithm);
    from.set("parallel.context.layout", std::string(balancer == "zig_zag" ? "zigzag" : "contiguous"));
  }
  from.ignore_all("load_balancer head_stride", prefix + "cp_config.");
  if (sizes.pp > 1) {
    const std::string schedule = from.word(prefix + "pp_config.schedule").value_or("1F1B");
    from.set("parallel.pipeline.schedule", std::string(contains(schedule, "Interleaved") ? "interleaved" : "1f1b"));
    from.leave_out(prefix + "pp_config.split_points", "parallel.pipeline.layers lists the layers of each stage");
  }
  return sizes;
}

/// Returns the tokens of a step.
std::optional<int64_t> take_olmo_batch(Conversion& from) {
  const auto length = from.has("train_module.max_sequence_length") ? from.whole("train_module.max_sequence_length")
                                                                   : from.whole("dataset.sequence_length");
  const auto tokens = from.whole("data_loader.global_batch_size"),
             micro = from.whole("train_module.rank_microbatch_size");
  from.ignore_all("train_module.max_sequence_length dataset.sequence_length");
  if (length) from.set("train.sequence_length", *length);
  from.need("train.sequence_length", "train_module.max_sequence_length");
  if (length && tokens) from.set("train.global_batch", *tokens / *length, "global_batch_size is in tokens");
  from.need("train.global_batch", "data_loader.global_batch_size / train.sequence_length");
  if (length && micro) {
    from.set("train.micro_batch", std::max<int64_t>(1, *micro / *length), "rank_microbatch_size is in tokens");
  }
  return tokens;
}

void take_olmo_steps(Conversion& from, const std::optional<int64_t>& tokens_of_step) {
  const std::string duration = "trainer.max_duration.", stop = "trainer.hard_stop.";
  const auto steps_of = [&](const std::string& path) -> std::optional<int64_t> {
    const auto value = from.whole(path + "value");
    const std::string unit = from.word(path + "unit").value_or("steps");
    from.ignore(path + "_CLASS_");
    if (!value || unit == "epochs") return std::nullopt;
    if (unit == "steps") return value;
    return tokens_of_step ? std::optional(*value / *tokens_of_step) : std::nullopt;
  };
  const auto scheduled = steps_of(duration), stopped = steps_of(stop);
  if (stopped) {
    from.set("train.steps", *stopped, "hard_stop");
    if (scheduled) from.set("schedule.total_steps", *scheduled, "max_duration");
  } else if (scheduled) {
    from.set("train.steps", *scheduled, "max_duration");
  }
  from.need("train.steps", "trainer.max_duration / the batch of a step");
}

void take_olmo_groups(Conversion& from) {
  const YamlValue* overrides = from.value("train_module.optim.group_overrides");
  if (overrides == nullptr) return;
  std::string groups;
  for (const YamlValue& each : overrides->items) {
    const YamlValue *params = each.find("params"), *opts = each.find("opts");
    const YamlValue* decay = opts == nullptr ? nullptr : opts->find("weight_decay");
    const bool is_embedding = params != nullptr && params->items.size() == 1 &&
                              params->items.front().text == "embeddings.weight" && decay != nullptr &&
                              opts->entries.size() == 1;
    if (!is_embedding) {
      from.refuse_absent("train_module.optim.group_overrides: optimizer.groups is similar, with Hugging Face names");
      continue;
    }
    if (!groups.empty()) groups += ", ";
    groups += "{pattern: model.embed_tokens.weight, weight_decay: " + decay->text + "}";
  }
  if (!groups.empty()) from.set("optimizer.groups", "[" + groups + "]");
}

void take_olmo_optimizer(Conversion& from) {
  const std::string prefix = "train_module.optim.", name = class_of(from, "train_module.optim");
  if (contains(name, "AdamW")) {
    from.set("optimizer.name", std::string("adamw"));
    if (contains(name, "SkipStep")) {
      from.set("train.skip_outliers.window", from.whole(prefix + "rolling_interval_length").value_or(128));
      from.set("train.skip_outliers.sigma", from.whole(prefix + "sigma_factor").value_or(6));
    }
  } else {
    from.refuse_absent("train_module.optim: " + name + ": optimizer.name has adamw, sgd and muon");
  }
  if (const auto rate = from.number(prefix + "lr")) from.set("optimizer.learning_rate", *rate);
  from.need("optimizer.learning_rate", "train_module.optim.lr");
  const std::vector<std::string> betas = from.list(prefix + "betas");
  from.set("optimizer.betas", betas.size() == 2 ? "[" + betas[0] + ", " + betas[1] + "]" : "[0.9, 0.999]",
           betas.size() == 2 ? "" : from.by_default());
  from.set_number(prefix + "eps", "optimizer.eps", 1e-8);
  from.set_number(prefix + "weight_decay", "optimizer.weight_decay", 1e-2);
  take_olmo_groups(from);
  from.ignore_all("fused compile foreach rolling_interval_length sigma_factor dtype", prefix);
  const auto norm = from.number("train_module.max_grad_norm");
  from.set("train.clip_norm", norm.value_or(0), norm ? "" : from.by_default());
  if (const double z_loss = from.number("train_module.z_loss_multiplier").value_or(0); z_loss > 0) {
    from.set("train.z_loss", z_loss);
  }

  const std::string schedule = "train_module.scheduler.", kind = class_of(from, "train_module.scheduler");
  if (!from.has("train_module.scheduler")) return from.set("schedule.name", std::string("constant"), from.by_default());
  if (contains(kind, "CosWithWarmup") || contains(kind, "cos_with_warmup")) {
    from.set("schedule.name", std::string("cosine"));
  } else if (contains(kind, "LinearWithWarmup") || contains(kind, "linear_with_warmup")) {
    from.set("schedule.name", std::string("linear"));
  } else if (contains(kind, "Constant") || contains(kind, "constant")) {
    from.set("schedule.name", std::string("constant"));
  } else {
    from.refuse_absent("train_module.scheduler: " + kind + ": schedule.name has constant, cosine, linear and wsd");
  }
  const auto warmup =
      from.has(schedule + "warmup") ? from.whole(schedule + "warmup") : from.whole(schedule + "warmup_steps");
  const double least = from.number(schedule + "warmup_min_lr").value_or(0);
  if (least > 0) from.refuse(schedule + "warmup_min_lr", "schedule.first_ratio is it / optimizer.learning_rate");
  if (warmup.value_or(0) > 0) {
    from.set("schedule.warmup_steps", *warmup);
    from.set("schedule.first_ratio", int64_t{0}, "OLMo-core's warm-up begins at 0");
  }
  if (kind.find("onstant") == std::string::npos) from.set_number(schedule + "alpha_f", "schedule.min_ratio", 0.1);
  from.ignore_all("warmup warmup_steps units alpha_f t_max lr_field initial_lr_field", schedule);
}

void take_olmo_checkpointing(Conversion& from) {
  const std::string prefix = "train_module.ac_config.", mode = from.word(prefix + "mode").value_or("");
  if (mode == "full") from.set("train.activation_checkpointing.mode", std::string("full"));
  if (mode == "budget" || mode.starts_with("selected")) {
    from.set("train.activation_checkpointing.mode", std::string("selective"), mode);
    from.leave_out(prefix + "activation_memory_budget", "selective recomputes only cheap operators");
  }
  from.ignore_all("_CLASS_ block_interval modules", prefix);
}

}  // namespace

void convert_olmo_core(Conversion& from) {
  take_olmo_mesh(from);
  take_olmo_steps(from, take_olmo_batch(from));
  take_olmo_optimizer(from);
  take_olmo_checkpointing(from);
  if (from.is_on("train_module.float8_config.enabled")) {
    from.refuse("train_module.float8_config", "FP8 is not supported");
  }
  from.ignore("train_module.float8_config");
  from.need("model.hf", "the folder of the model, as OLMo-core's converter to Hugging Face writes it");
  from.leave_out("model", "config.json of model.hf has the shape");
  from.set("data.layout", std::string("stream"), "of meshtrain data prepare --text");
  from.need("data.tokens", "the files of `dataset`, or tokens that meshtrain data prepare writes");
  if (from.is_on("dataset.generate_doc_lengths")) {
    from.need("data.documents", "the id of the token that ends a document: documents do not see each other");
  }
  from.set("data.shuffle", true, "in a different order");
  from.leave_out("dataset", "data.tokens, or data.mixture with weights");
  const auto seed = from.has("data_loader.seed") ? from.whole("data_loader.seed") : from.whole("init_seed");
  if (seed) from.set("train.seed", *seed);
  const std::string saves = "trainer.callbacks.checkpointer.";
  if (const auto every = from.whole(saves + "save_interval")) from.set("checkpoint.every", *every);
  from.refuse("trainer.load_path", "meshtrain checkpoint import begins a run with weights");
  from.leave_out("trainer.save_folder", "it is an option: --run-dir");
  from.leave_out("trainer.callbacks", "checkpoints, evaluation and metrics have keys of their own");
  from.ignore_all(
      "save_overwrite metrics_collect_interval cancel_check_interval load_strategy load_trainer_state "
      "load_optim_state work_dir device checkpointer _CLASS_ max_duration hard_stop",
      "trainer.");
  from.ignore_all("_CLASS_ num_workers prefetch_factor target_device_type num_threads work_dir", "data_loader.");
  from.ignore_all(
      "_CLASS_ compile_model autocast_precision label_ignore_index state_dict_save_opts "
      "state_dict_load_opts",
      "train_module.");
  from.ignore_all("_CLASS_ launch run_name init_seed backend");
}

}  // namespace meshtrain

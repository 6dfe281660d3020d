#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/foreign/meshes.h"

namespace meshtrain {
namespace {

/// The configuration that a function of torchtitan/models/llama3/config_registry.py returns, by its name.
struct TitanConfig {
  const char* name;
  const char* flavor;  ///< of the model
  int64_t hidden, intermediate, layers, heads, kv_heads, vocabulary;
  double learning_rate;
  int64_t warmup;
  double decay_ratio;  ///< 0: all steps after the warm-up
  int64_t local_batch, sequence, steps, tp;
  const char* checkpointing;
  int64_t save_every;
};

constexpr std::array kConfigs = {
    TitanConfig{"llama3_debugmodel", "debugmodel", 256, 768, 6, 16, 16, 2048, 8e-4, 2, 0.8, 8, 2048, 10, 1, "selective",
                10},
    TitanConfig{"llama3_8b", "8B", 4096, 14336, 32, 32, 8, 128256, 3e-4, 200, 0, 1, 8192, 1000, 1, "selective", 500},
    TitanConfig{"llama3_70b", "70B", 8192, 28672, 80, 64, 8, 128256, 1.5e-4, 200, 0, 8, 8192, 1000, 8, "full", 500},
    TitanConfig{"llama3_405b", "405B", 16384, 53248, 126, 128, 8, 128256, 8e-5, 600, 0, 2, 8192, 3000, 8, "full", 500},
};

/// Returns the number at the end of a word, "fsdp2" -> 2; none without `name` before it.
std::optional<int64_t> number_after(const std::string& word, const std::string& name) {
  if (!word.starts_with(name) || word.size() == name.size()) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data() + name.size(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(number) : std::nullopt;
}

/// The settings in the rest of a name, as in torchtitan_recipes/tests/features.py: "_hsdp2x2_tp2_cp2".
struct TitanFlavour {
  MeshSizes sizes;
  std::string context = "all_gather", schedule = "interleaved";
  bool sequence_parallel = true, documents = false;
  std::vector<std::string> unknown;
};

TitanFlavour flavour_of(const std::string& rest) {
  TitanFlavour flavour;
  MeshSizes& sizes = flavour.sizes;
  for (size_t begin = 0; begin < rest.size();) {
    const size_t end = std::min(rest.find('_', begin), rest.size());
    const std::string word = rest.substr(begin, end - begin);
    begin = end + 1;
    const size_t times = word.find('x');
    if (word.empty()) continue;
    if (word.starts_with("hsdp") && times != std::string::npos) {
      sizes.replicas = number_after(word.substr(0, times), "hsdp").value_or(1);
      sizes.shards = number_after(word.substr(times), "x").value_or(1);
    } else if (const auto shards = number_after(word, "fsdp")) {
      sizes.shards = *shards;
    } else if (const auto replicas = number_after(word, "ddp")) {
      sizes.replicas = *replicas;
      sizes.shards = 1;
    } else if (const auto tp = number_after(word, "tp")) {
      sizes.tp = *tp;
    } else if (const auto cp = number_after(word, "cp")) {
      sizes.cp = *cp;
    } else if (const auto pp = number_after(word, "pp")) {
      sizes.pp = *pp;
    } else if (word == "ulysses") {
      flavour.context = word;
    } else if (word == "1f1b") {
      if (flavour.schedule != "interleaved" || rest.find("interleaved") == std::string::npos) flavour.schedule = word;
    } else if (word == "sp" && rest.find("no_sp") != std::string::npos) {
      flavour.sequence_parallel = false;
    } else if (word == "varlen") {
      flavour.documents = true;
    } else if (word != "interleaved" && word != "no" && word != "attn" && word != "sac" && word != "default") {
      flavour.unknown.push_back(word);
    }
  }
  return flavour;
}

const TitanConfig* config_of(const std::string& name) {
  const TitanConfig* found = nullptr;
  for (const TitanConfig& each : kConfigs) {
    if (name == each.name || name.starts_with(std::string(each.name) + "_")) found = &each;
  }
  return found;
}

void take_titan_mesh(Conversion& from, const TitanConfig& config, const TitanFlavour& flavour) {
  const std::string prefix = "parallelism.";
  const auto degree = [&](const char* key, int64_t usual) { return from.whole(prefix + key).value_or(usual); };
  MeshSizes sizes = flavour.sizes;
  sizes.replicas = degree("data_parallel_replicate_degree", sizes.replicas);
  if (const auto shards = from.whole(prefix + "data_parallel_shard_degree")) {
    sizes.shards = *shards > 0 ? shards : std::nullopt;  // -1: the ranks that are left
  }
  sizes.tp = degree("tensor_parallel_degree", sizes.tp > 1 ? sizes.tp : config.tp);
  sizes.cp = degree("context_parallel_degree", sizes.cp);
  sizes.pp = degree("pipeline_parallel_degree", sizes.pp);
  sizes.ep = degree("expert_parallel_degree", sizes.ep);
  // The debug configurations name every axis that is cut; others leave the remaining ranks to dp.
  const bool names_all = std::string(config.flavor) == "debugmodel" && sizes.tp * sizes.cp * sizes.pp > 1;
  if (!sizes.shards && sizes.replicas == 1 && names_all) sizes.shards = 1;
  set_mesh(from, sizes);
  from.set("parallel.order", std::string("[pp, dp, cp, tp]"));
  if (sizes.tp > 1) {
    const bool is_on = from.has(prefix + "enable_sequence_parallel") ? from.is_on(prefix + "enable_sequence_parallel")
                                                                     : flavour.sequence_parallel;
    from.set("parallel.sequence_parallel", std::string(is_on ? "on" : "off"));
  }
  from.ignore(prefix + "enable_sequence_parallel");
  if (sizes.cp > 1) {
    const std::string rotate = from.word(prefix + "context_parallel_rotate_method").value_or("allgather");
    from.set("parallel.context.algorithm", std::string(rotate == "alltoall" ? "ring" : flavour.context));
    const std::string balancer = from.word(prefix + "context_parallel_load_balancer")
                                     .value_or(flavour.context == "ulysses" ? "None" : "headtail");
    from.set("parallel.context.layout", std::string(balancer == "headtail" ? "zigzag" : "contiguous"));
  }
  const std::string reshard = from.word(prefix + "fsdp_reshard_after_forward").value_or("default");
  if (reshard == "never" || (reshard == "default" && sizes.pp > 1)) {
    from.set("parallel.fsdp.reshard_after_forward", false, reshard == "default" ? "with a pipeline, by default" : "");
  }
  if (sizes.pp > 1) {
    const std::string schedule = from.word(prefix + "pipeline_parallel_schedule").value_or(flavour.schedule);
    if (schedule == "1F1B" || schedule == "1f1b") {
      from.set("parallel.pipeline.schedule", std::string("1f1b"));
    } else if (schedule == "Interleaved1F1B" || schedule == "interleaved") {
      from.set("parallel.pipeline.schedule", std::string("interleaved"));
      from.set("parallel.pipeline.stages_per_rank", int64_t{2}, from.by_default());
    } else {
      from.refuse(prefix + "pipeline_parallel_schedule", "parallel.pipeline.schedule has 1f1b, interleaved and zb_h1");
    }
    from.leave_out(prefix + "pipeline_parallel_layers_per_stage", "parallel.pipeline.layers lists them");
  }
  from.leave_out(prefix + "enable_async_tensor_parallel", "tp collectives already overlap with computation");
  from.ignore_all(
      "disable_loss_parallel enable_compiled_autograd pipeline_parallel_microbatch_size num_pp_microbatches", prefix);

  const int64_t micro =
      from.whole(prefix + "pipeline_parallel_microbatch_size").value_or(sizes.pp > 1 ? 1 : config.local_batch);
  const int64_t local = from.whole("training.local_batch_size").value_or(config.local_batch);
  const auto global = from.whole("training.global_batch_size");
  from.set("train.micro_batch", sizes.pp > 1 ? micro : local);
  if (global && *global > 0) {
    from.set("train.global_batch", *global);
  } else if (const auto dp = sizes.dp()) {
    from.set("train.global_batch", local * *dp, "local_batch_size x dp");
  } else {
    from.need("train.global_batch", std::to_string(local) + " x the ranks of dp");
  }
}

void take_titan_training(Conversion& from, const TitanConfig& config) {
  from.set("train.sequence_length", from.whole("training.seq_len").value_or(config.sequence));
  const int64_t steps = from.whole("training.steps").value_or(config.steps);
  from.set("train.steps", steps);
  from.set_number("training.max_norm", "train.clip_norm", 1);
  const std::string computes = from.word("training.mixed_precision_param").value_or("bfloat16");
  from.set("train.precision", std::string(computes == "float32" ? "fp32" : "bf16_mixed"));
  from.refuse("training.dtype", "trained weights are in fp32 under mixed precision");
  from.ignore("training.mixed_precision_reduce");
  if (const auto seed = from.whole("debug.seed")) from.set("train.seed", *seed);
  const std::string name = from.word("optimizer.name").value_or("AdamW");
  if (name != "AdamW") from.refuse("optimizer.name", "only AdamW is converted");
  from.set("optimizer.name", std::string("adamw"));
  from.set("optimizer.learning_rate", from.number("optimizer.lr").value_or(config.learning_rate));
  from.set("optimizer.betas", "[" + from.word("optimizer.beta1").value_or("0.9") + ", " +
                                  from.word("optimizer.beta2").value_or("0.95") + "]");
  from.set_number("optimizer.eps", "optimizer.eps", 1e-8);
  from.set_number("optimizer.weight_decay", "optimizer.weight_decay", 0.1);
  from.ignore("optimizer.implementation");

  const int64_t warmup = from.whole("lr_scheduler.warmup_steps").value_or(config.warmup);
  const double ratio = from.number("lr_scheduler.decay_ratio").value_or(config.decay_ratio);
  const std::string type = from.word("lr_scheduler.decay_type").value_or("linear");
  if (type != "linear" && type != "cosine")
    from.refuse("lr_scheduler.decay_type", "schedule.name has cosine, linear and wsd");
  from.set("schedule.warmup_steps", std::min(warmup, steps));
  if (ratio > 0 && ratio < 1) {
    from.set("schedule.name", std::string("wsd"));
    from.set("schedule.decay_steps", static_cast<int64_t>(ratio * static_cast<double>(steps) + 0.5), "decay_ratio");
    if (type == "cosine") from.refuse_absent("lr_scheduler.decay_type: cosine: the decay of wsd is linear");
  } else {
    from.set("schedule.name", type);
  }
  from.set("schedule.min_ratio", from.number("lr_scheduler.min_lr_factor").value_or(0));
  const std::string mode = from.word("activation_checkpoint.mode").value_or(config.checkpointing);
  if (mode == "full" || mode == "selective") from.set("train.activation_checkpointing.mode", mode);
  if (mode == "selective") {
    from.leave_out("activation_checkpoint.selective_ac_option", "selective recomputes norms and SwiGLU");
  }
  from.ignore("activation_checkpoint.selective_ac_option");
  from.set("checkpoint.every", from.whole("checkpoint.interval").value_or(config.save_every));
  from.ignore_all("checkpoint.enable checkpoint.last_save_model_only");
  from.leave_out("checkpoint.folder", "it is an option: --run-dir");
}

}  // namespace

YamlValue nested_arguments(const YamlValue& arguments) {
  YamlValue root;
  root.kind = YamlValue::Kind::Map;
  root.location = arguments.location;
  for (const YamlEntry& each : arguments.entries) {
    std::string path = each.key.substr(each.key.starts_with("--") ? 2 : 0);
    std::ranges::replace(path, '-', '_');
    YamlValue* at = &root;
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('.', begin), path.size());
      const std::string key = path.substr(begin, end - begin);
      begin = end + 1;
      YamlValue* next = at->find(key);
      if (next == nullptr) {
        YamlValue value;
        value.kind = YamlValue::Kind::Map;
        value.location = each.location;
        at->entries.push_back({key, each.location, std::move(value)});
        next = &at->entries.back().value;
      }
      at = next;
    }
    *at = each.value;
  }
  return root;
}

bool is_of_torchtitan(const YamlValue& arguments) {
  const YamlValue* const name = arguments.find("--config");
  return name != nullptr && config_of(name->text) != nullptr;
}

void convert_torchtitan(Conversion& from) {
  const std::string name = from.word("config").value_or("");
  const TitanConfig& config = *config_of(name);
  const TitanFlavour flavour = flavour_of(name.substr(std::string(config.name).size()));
  for (const std::string& word : flavour.unknown) {
    from.refuse_absent("config: " + name + ": " + word + " is not supported");
  }
  from.ignore("module");
  from.set("model.family", std::string("llama"), config.flavor);
  for (const auto& [key, value] : {std::pair("hidden_size", config.hidden),
                                   {"intermediate_size", config.intermediate},
                                   {"num_hidden_layers", config.layers},
                                   {"num_attention_heads", config.heads},
                                   {"num_key_value_heads", config.kv_heads},
                                   {"vocab_size", config.vocabulary},
                                   {"rope_theta", 500000}}) {
    from.set("model." + std::string(key), static_cast<int64_t>(value));
  }
  from.set("model.rms_norm_eps", 1e-5);
  from.set("model.tie_word_embeddings", false);
  from.set("model.rope_scaling", std::string("{rope_type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, "
                                             "original_max_position_embeddings: 8192}"));
  take_titan_mesh(from, config, flavour);
  take_titan_training(from, config);
  if (std::string(config.name) == "llama3_405b") {
    from.refuse_absent("model_converters: Float8LinearConverter: FP8 is not supported");
  }
  from.set("data.layout", std::string("stream"), "of meshtrain data prepare --text");
  from.need("data.tokens", "its texts, c4 or c4_test, as meshtrain data prepare --text writes them");
  from.ignore("dataloader.dataset");
  if (flavour.documents) from.need("data.documents", "the id of the token that ends a document");
  for (const char* key : {"metrics", "profiling", "profiler", "validator", "comm", "compile"}) {
    from.leave_out(key, "it does not change what is trained");
  }
}

}  // namespace meshtrain

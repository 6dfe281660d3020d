#include <string>

#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/foreign/megatron.h"
#include "runtime/program/yaml/scalar_text.h"

namespace meshtrain {
namespace {

/// Returns the value of an argument, or says what its absence means.
std::string given_or(Conversion& from, const char* argument, const std::string& usual) {
  return from.word(argument).value_or("absent, which is " + usual);
}

void take_sizes(Conversion& from) {
  const auto take = [&](const char* argument, const char* key) {
    const std::optional<int64_t> value = from.whole(argument);
    if (value) from.set(key, *value);
    return value.value_or(0);
  };
  const int64_t hidden = take("--hidden-size", "model.hidden_size"),
                heads = take("--num-attention-heads", "model.num_attention_heads");
  take("--num-layers", "model.num_hidden_layers");
  take("--vocab-size", "model.vocab_size");
  if (take("--ffn-hidden-size", "model.intermediate_size") == 0 && hidden > 0) {
    from.set("model.intermediate_size", from.is_on("--swiglu") ? hidden * 8 / 3 / 64 * 64 : 4 * hidden,
             from.by_default());
  }
  const int64_t groups = from.whole("--num-query-groups").value_or(1);
  if (from.is_on("--group-query-attention")) from.set("model.num_key_value_heads", groups);
  from.ignore("--group-query-attention");
  if (take("--kv-channels", "model.head_dim") == 0 && heads > 0) {
    from.set("model.head_dim", hidden / heads, from.by_default());
  }
  take("--max-position-embeddings", "model.max_position_embeddings");
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads"}) {
    from.need("model." + std::string(key), "that of the model: no argument gives it");
  }
  from.need("model.vocab_size", "the ids of the tokenizer; tp cuts any number without padding");
  from.ignore("--make-vocab-size-divisible-by");
}

void take_positions(Conversion& from) {
  const std::string kind = from.word("--position-embedding-type").value_or("learned_absolute");
  if (kind != "rope" && !from.is_on("--use-rotary-position-embeddings")) {
    from.refuse_absent("--position-embedding-type: " + given_or(from, "--position-embedding-type", kind) +
                       ": positions are rotary");
  }
  from.ignore("--use-rotary-position-embeddings");
  from.set_number("--rotary-base", "model.rope_theta", 10000);
  if (from.number("--rotary-percent").value_or(1) != 1) {
    from.refuse("--rotary-percent", "all features of a head are rotated, except in family phi3");
  }
  if (from.is_on("--use-rope-scaling")) {
    constexpr double kTaken = 8;  // by the GPT model, which does not get the argument
    const double factor = from.number("--rope-scaling-factor").value_or(kTaken);
    from.set("model.rope_scaling", "{rope_type: llama3, factor: " + scalar_text(factor) +
                                       ", low_freq_factor: 1, high_freq_factor: 4, "
                                       "original_max_position_embeddings: 8192}");
    if (factor != kTaken) {
      from.refuse_absent(
          "--rope-scaling-factor: Megatron's GPT models ignore it and scale by 8 (NVIDIA/Megatron-LM "
          "issue 6305): continue their checkpoints with model.rope_scaling.factor: 8");
    }
  } else if (const double factor = from.number("--rotary-seq-len-interpolation-factor").value_or(1); factor != 1) {
    from.set("model.rope_scaling", "{rope_type: linear, factor: " + scalar_text(factor) + "}");
  }
  from.ignore("--use-rope-scaling");
}

/// Sets the family and the biases: with biases of queries, keys and values alone it is qwen2, with norms of queries and
/// keys qwen3.
void take_layers(Conversion& from) {
  const bool has_biases = !from.is_on("--disable-bias-linear"), has_qkv_bias = from.is_on("--add-qkv-bias"),
             has_qk_norm = from.is_on("--qk-layernorm");
  const std::string family = has_qk_norm ? "qwen3" : has_qkv_bias && !has_biases ? "qwen2" : "llama";
  from.set("model.family", family, "the shape follows; model.hf: FOLDER would load weights");
  if (has_biases) from.set("model.attention_bias", true, from.by_default());
  if (has_biases && family == "llama") from.set("model.mlp_bias", true, from.by_default());
  if (has_biases && has_qk_norm) {
    from.refuse_absent("--disable-bias-linear is absent: feed-forward layers of family qwen3 have no biases");
  }
  if (has_qkv_bias && has_qk_norm && !has_biases) {
    from.refuse("--add-qkv-bias", "in family qwen3, all projections of the attention have biases, or none");
  }
  from.ignore_all("--disable-bias-linear --add-qkv-bias --qk-layernorm");
  from.set("model.tie_word_embeddings", !from.is_on("--untie-embeddings-and-output-weights"));
  from.ignore("--untie-embeddings-and-output-weights");

  if (!from.is_on("--swiglu")) {
    from.refuse_absent("--swiglu is absent: feed-forward layers of family " + family + " use SwiGLU");
  }
  from.ignore("--swiglu");
  if (const std::string norm = from.word("--normalization").value_or("LayerNorm"); norm != "RMSNorm") {
    from.refuse_absent("--normalization: " + given_or(from, "--normalization", norm) + ": norms are RMSNorm");
  }
  from.leave_out("--apply-layernorm-1p", "norms multiply by their weight, not by 1 + weight: values are the same");
  const std::optional<double> newer = from.number("--norm-epsilon"), older = from.number("--layernorm-epsilon");
  from.set("model.rms_norm_eps", newer.value_or(older.value_or(1e-5)), newer || older ? "" : from.by_default());
  from.set_number("--init-method-std", "model.initializer_range", 0.02);
  from.refuse_absent("--init-method-std: first weights at the end of a sublayer are not divided by sqrt(2 x layers)");
  for (const char* dropout : {"--attention-dropout", "--hidden-dropout"}) {
    if (from.number(dropout).value_or(0.1) == 0) continue;
    from.refuse_absent(std::string(dropout) + ": " + given_or(from, dropout, "0.1") + ": the model has no dropout");
  }
  from.refuse("--window-size", "model.sliding_window of family mistral is similar");
}

}  // namespace

void take_megatron_model(Conversion& from) {
  take_sizes(from);
  take_positions(from);
  take_layers(from);
  for (const char* experts : {"--num-experts", "--expert-model-parallel-size", "--expert-tensor-parallel-size"}) {
    if (from.whole(experts).value_or(1) > 1)
      from.refuse(experts, "models with experts are not converted: set model.hf to the folder of one");
  }
  from.refuse("--multi-latent-attention", "multi-latent attention is not supported");
}

void convert_megatron(Conversion& from) {
  take_megatron_model(from);
  take_megatron_parallelism(from);
  take_megatron_training(from);
}

}  // namespace meshtrain

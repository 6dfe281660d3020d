#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "mesh/base/error.h"
#include "runtime/program/hf/config_json.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {

// The config.json in the folders published for these models.
inline const char* const kSmolLm2 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32, "pad_token_id": 2, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 130000,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers.js_config": {"dtype": "q4"},
  "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})";
inline const char* const kLlama32 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
  "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true,
  "vocab_size": 128256})";
inline const char* const kMistral = R"({
  "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.0", "use_cache": true,
  "vocab_size": 32768})";
inline const char* const kQwen2 = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
  "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
  "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
  "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})";
inline const char* const kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
  "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})";
// The same, as transformers 5 writes it.
inline const char* const kVersion5 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "dtype": "float32",
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
  "intermediate_size": 3072, "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 40960,
  "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 2,
  "num_key_value_heads": 8, "pad_token_id": null, "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 1000000,
  "rope_type": "default"}, "sliding_window": null, "tie_word_embeddings": true, "transformers_version": "5.0.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

// The settings that the pages of these models recommend to extend their context.
inline const nlohmann::json kLinear = {{"rope_type", "linear"}, {"factor", 2.5}};
inline const nlohmann::json kYarn = {
    {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};

/// Reads config.json files, of texts or of one of the above with changes.
class ConfigJson : public ::testing::Test {
 protected:
  /// Returns the config.json that transformers wrote for a fixture.
  static nlohmann::json fixture(const std::string& name) {
    return nlohmann::json::parse(std::ifstream(source_folder() + "/tests/fixtures/" + name + "/config.json"));
  }
  ModelShape read(const std::string& text) const {
    write_file(file_, text);
    return read_config_json(file_);
  }
  /// Reads `base` with the keys of `changes` (null removes one).
  ModelShape read(const char* base, const nlohmann::json& changes) const {
    nlohmann::json config = nlohmann::json::parse(base);
    config.merge_patch(changes);
    return read(config.dump());
  }
  std::string refusal(const char* base, const nlohmann::json& changes) const {
    const std::string text = message<InputError>([&] { read(base, changes); });
    EXPECT_TRUE(text.empty() || has(text, file_.string() + ": ")) << text;
    return text;
  }
  std::string refusal(const std::string& text) const {
    return message<InputError>([&] { read(text); });
  }

  ScratchFolder folder_;
  std::filesystem::path file_ = folder_.path() / "config.json";
};

}  // namespace meshtrain::testing

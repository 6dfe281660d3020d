// Mixtures of experts in config.json.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/training/model/families.h"
#include "tests/runtime/program/hf/public_configs.h"
#include "tests/support/files.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::ConfigJson;
using testing::has;

TEST_F(ConfigJson, WritesWhatItReadsOfExperts) {
  for (const char* name : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared",
                           "mixtral_balanced", "dots1", "glm4_moe", "gpt_oss"}) {
    const std::string file = testing::source_folder() + "/tests/fixtures/" + name + "/config.json";
    const ModelShape shape = read_config_json(file);
    const std::string written = write_config_json(shape, "float32");
    EXPECT_EQ(write_config_json(read(written), "float32"), written) << name;
    EXPECT_TRUE(read(written).experts == shape.experts) << name;
    const json before = json::parse(std::ifstream(file)), after = json::parse(written);
    for (const auto& [key, value] : after.items()) {
      EXPECT_TRUE(!before.contains(key) || before[key].is_null() || value == before[key]) << name << " " << key;
    }
    for (const char* key : {"num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
                            "shared_intermediate_size", "norm_topk_prob", "mlp_only_layers", "decoder_sparse_step",
                            "n_routed_experts", "n_shared_experts", "first_k_dense_replace", "n_group", "topk_group",
                            "routed_scaling_factor", "use_qk_norm", "swiglu_alpha", "swiglu_limit"}) {
      EXPECT_EQ(after.contains(key), before.contains(key)) << name << " " << key;
    }
  }
}

TEST_F(ConfigJson, ReadsTheExpertsOfDeepSeeksRouter) {
  json config = fixture("dots1");
  const ModelShape shape = read(config.dump());
  EXPECT_EQ(shape.experts.shared_expert_intermediate_size, 24) << "two of 12 features";
  EXPECT_EQ(shape.experts.mlp_only_layers, std::vector<int64_t>{0});
  EXPECT_EQ(shape.experts.n_group, 4);
  EXPECT_EQ(shape.experts.topk_group, 2);
  EXPECT_EQ(shape.experts.routed_scaling_factor, 2.5);
  EXPECT_EQ(window_of(shape, 1), 0) << "layers from max_window_layers on slide";
  EXPECT_EQ(window_of(shape, 2), 5);
  config["output_router_logits"] = true;
  EXPECT_EQ(read(config.dump()).experts.router_aux_loss_coef, 0) << "transformers has no balancing loss for it";
  for (const auto& [key, value, problem] :
       {std::tuple("n_group", json(3), "does not divide 8 experts"), std::tuple("n_group", json(8), "two or more"),
        std::tuple("topk_group", json(5), "is more than n_group 4"),
        std::tuple("topk_group", json(1), "leaves fewer than num_experts_per_tok 3"),
        std::tuple("first_k_dense_replace", json(3), "leaves no layer with experts"),
        std::tuple("scoring_func", json("softmax"), "a dots1 has sigmoid")}) {
    json changed = fixture("dots1");
    changed[key] = value;
    EXPECT_TRUE(has(refusal(changed.dump()), problem)) << key;
  }
  json glm = fixture("glm4_moe");
  glm["rope_parameters"].erase("partial_rotary_factor");
  const ModelShape shape_of_glm = read(glm.dump());
  EXPECT_EQ(shape_of_glm.partial_rotary_factor, 0.5) << "of an absent key";
  EXPECT_TRUE(shape_of_glm.qkv_bias && !shape_of_glm.output_bias);
  EXPECT_EQ(query_key_norm(shape_of_glm), QueryKeyNorm::EachHead);
  glm["use_qk_norm"] = false;
  EXPECT_EQ(query_key_norm(read(glm.dump())), QueryKeyNorm::None);
  ModelShape other = shape;
  other.experts.mlp_only_layers = {1};
  EXPECT_THROW(write_config_json(other, "float32"), InputError);
  other = shape;
  other.experts.shared_expert_intermediate_size = 13;
  EXPECT_THROW(write_config_json(other, "float32"), InputError);
}

TEST_F(ConfigJson, ReadsGptOss) {
  json config = fixture("gpt_oss");
  const ModelShape shape = read(config.dump());
  EXPECT_TRUE(shape.qkv_bias && shape.output_bias);
  EXPECT_EQ(shape.experts.swiglu_alpha, 1.3);
  EXPECT_EQ(shape.experts.swiglu_limit, 0.8);
  EXPECT_FALSE(shape.rope_scaling->truncate);
  // Keys of the published folders that concern other programs, and the values of absent ones.
  config.update({{"experts_per_token", 4}, {"initial_context_length", 4096}, {"num_hidden_layers", 3}});
  for (const char* key : {"attention_bias", "swiglu_alpha", "swiglu_limit", "rope_parameters", "layer_types",
                          "sliding_window", "head_dim", "rms_norm_eps", "tie_word_embeddings"}) {
    config.erase(key);
  }
  const ModelShape absent = read(config.dump());
  EXPECT_TRUE(absent.qkv_bias && absent.output_bias);
  EXPECT_EQ(absent.experts.swiglu_alpha, 1.702);
  EXPECT_EQ(absent.experts.swiglu_limit, 7);
  EXPECT_EQ(absent.rope_theta, 150000);
  EXPECT_EQ(absent.rope_scaling->type, "yarn");
  EXPECT_EQ(absent.rope_scaling->factor, 32);
  EXPECT_EQ(absent.rope_scaling->original_max_position_embeddings, 4096);
  EXPECT_FALSE(absent.rope_scaling->truncate);
  for (int64_t layer = 0; layer < 3; ++layer) EXPECT_EQ(window_of(absent, layer), layer == 1 ? 0 : 128) << layer;
  EXPECT_EQ(absent.head_dim, 64);
  EXPECT_EQ(absent.rms_norm_eps, 1e-5);
  EXPECT_FALSE(absent.tie_word_embeddings);
  ModelShape unscaled = shape;
  unscaled.rope_scaling.reset();
  EXPECT_FALSE(read(write_config_json(unscaled, "float32")).rope_scaling) << "without the key it would be scaled";
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  const std::string message = refusal(config.dump());
  EXPECT_TRUE(has(message, "quantization_config has quant_method mxfp4: ")) << message;
  EXPECT_TRUE(has(message, "Mxfp4Config(dequantize=True)")) << message;
}

TEST_F(ConfigJson, ReadsWhichLayersHaveExperts) {
  json config = fixture("qwen3_moe");
  EXPECT_EQ(read(config.dump()).experts.num_experts, 8) << "transformers 5 writes num_local_experts";
  config["num_experts"] = 8;
  config["num_hidden_layers"] = 6;
  config["mlp_only_layers"] = {3};
  config["decoder_sparse_step"] = 2;
  const ModelShape shape = read(config.dump());
  EXPECT_EQ(shape.experts.mlp_only_layers, (std::vector<int64_t>{0, 2, 3, 4}));
  EXPECT_TRUE(has_experts(shape, 1) && !has_experts(shape, 3) && has_experts(shape, 5));
  config["num_experts"] = 6;
  EXPECT_TRUE(has(refusal(config.dump()), "num_local_experts and num_experts differ"));
  config["num_experts"] = 8;
  config["decoder_sparse_step"] = 7;
  EXPECT_TRUE(has(refusal(config.dump()), "mlp_only_layers and decoder_sparse_step leave no layer with experts"));

  json mixtral = fixture("mixtral");
  EXPECT_TRUE(read(mixtral.dump()).experts.norm_topk_prob);
  mixtral["num_experts_per_tok"] = 5;
  EXPECT_TRUE(has(refusal(mixtral.dump()), "num_experts_per_tok is 5, more than the 4 experts of num_local_experts"));
  for (const auto& [name, key, value] :
       {std::tuple("mixtral", "router_jitter_noise", json(0.1)), std::tuple("olmoe", "clip_qkv", json(8.0)),
        std::tuple("qwen2_moe", "qkv_bias", json(false)),
        std::tuple("qwen3_moe", "shared_expert_intermediate_size", json(4)),
        std::tuple("granitemoe", "shared_intermediate_size", json(4)),
        std::tuple("granitemoeshared", "attention_multiplier", json(0))}) {
    json changed = fixture(name);
    changed[key] = value;
    EXPECT_TRUE(has(refusal(changed.dump()), key)) << name;
  }
  const ModelShape slides = [&] {
    json qwen2 = fixture("qwen2_moe");
    qwen2.erase("layer_types");
    qwen2.update({{"num_hidden_layers", 5}, {"use_sliding_window", true}, {"sliding_window", 7}});
    qwen2["max_window_layers"] = 3;
    return read(qwen2.dump());
  }();
  for (int64_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(window_of(slides, layer), layer == 0 || layer == 2 ? 7 : 0) << layer;
  }
}
}  // namespace
}  // namespace meshtrain

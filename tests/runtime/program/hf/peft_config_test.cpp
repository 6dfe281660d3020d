// Folders of adapters, of PEFT and for it: tests/fixtures/adapters/folders.

#include "runtime/program/hf/peft_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/training/model/first_weights.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/peft_tensors.h"
#include "runtime/training/safetensors/writer.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

fs::path fixtures() {
  return source_folder() + "/tests/fixtures";
}

/// Returns the message with which the folder of llama is refused once its configuration has `key`.
std::string refusal(const std::string& key, const nlohmann::json& value) {
  const ScratchFolder scratch;
  fs::copy(fixtures() / "adapters/folders/llama", scratch.path() / "adapter");
  const fs::path file = scratch.path() / "adapter" / kPeftConfig;
  nlohmann::json config = nlohmann::json::parse(std::ifstream(file));
  config[key] = value;
  std::ofstream(file) << config;
  try {
    read_peft_folder(scratch.path() / "adapter", read_config_json(fixtures() / "llama/config.json"));
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find(file.string() + ": "), 0U) << message;
    return message.substr(file.string().size() + 2);
  }
  return "";
}

TEST(PeftConfig, RefusesWhatIsNoPlainLora) {
  EXPECT_EQ(refusal("r", 4), "");
  EXPECT_EQ(refusal("peft_type", "IA3"), "peft_type is not LORA: other adapters are not supported");
  EXPECT_EQ(refusal("use_dora", true), "use_dora is true: DoRA is not supported");
  EXPECT_EQ(refusal("ensure_weight_tying", true),
            "ensure_weight_tying is true: adapters of a tied embedding and its head are apart here");
  EXPECT_EQ(refusal("bias", "all"), "bias is \"all\": biases are not trained with adapters here");
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    EXPECT_EQ(refusal(key, {{"q_proj", 8}}),
              std::string(key) + " is {\"q_proj\":8}: all adapters of a model have one rank and one alpha here");
  }
  EXPECT_EQ(refusal("init_lora_weights", "pissa").substr(0, 53),
            "init_lora_weights is \"pissa\": it changes the base, wh");
  EXPECT_EQ(refusal("layer_replication", {{0, 1}, {0, 2}}), "layer_replication is [[0,1],[0,2]]: not supported");
}

TEST(PeftConfig, WritesRanksOfModulesOfSeveralLayers) {
  ModelShape shape = read_config_json(fixtures() / "phi3/config.json");
  shape.adapter = {.rank = 2, .alpha = 3, .use_rslora = true, .targets = {"all-linear"}, .layers = {1}};
  const nlohmann::json config = nlohmann::json::parse(write_peft_config(shape, {"model.norm"}, "models/base"));
  EXPECT_EQ(config.at("target_modules"), nlohmann::json({"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}));
  EXPECT_EQ(config.at("layers_to_transform"), nlohmann::json::array({1}));
  EXPECT_EQ(config.at("rank_pattern").at("model.layers.1.self_attn.qkv_proj"), 6);
  EXPECT_DOUBLE_EQ(config.at("alpha_pattern").at("model.layers.1.mlp.gate_up_proj").get<double>(), 3 * std::sqrt(2.0));
  EXPECT_EQ(config.at("rank_pattern").size(), 2U);
  EXPECT_EQ(config.at("modules_to_save"), nlohmann::json({"model.norm"}));
  EXPECT_EQ(config.at("base_model_name_or_path"), "models/base");
}

// PEFT leaves the head out where layers_to_transform has a choice of blocks.
TEST(PeftConfig, NamesTheHeadWithAllLayersOfBlocksOrEachOne) {
  ModelShape shape = read_config_json(fixtures() / "llama/config.json");
  const auto written = [&] { return nlohmann::json::parse(write_peft_config(shape, {}, "")); };
  shape.adapter = {.rank = 2, .targets = {"embed_tokens", "lm_head", "q_proj"}};
  EXPECT_EQ(written().at("target_modules"), nlohmann::json({"q_proj", "embed_tokens", "lm_head"}));
  EXPECT_TRUE(written().at("layers_to_transform").is_null());
  shape.adapter.targets = {"lm_head", "*.0.*.q_proj"};
  EXPECT_EQ(written().at("target_modules"), nlohmann::json({"model.layers.0.self_attn.q_proj", "lm_head"}));
  EXPECT_TRUE(written().at("layers_to_transform").is_null());
}

// PEFT saves the base's weight with an adapter of the embedding or the head.
TEST(PeftWeights, RefusesACopyOfAnotherBase) {
  ModelShape shape = read_config_json(fixtures() / "llama/config.json");
  const fs::path folder = fixtures() / "adapters/folders/ends";
  shape.adapter = read_peft_folder(folder, shape);
  EXPECT_EQ(shape.adapter.targets, (std::vector<std::string>{"q_proj", "embed_tokens", "lm_head"}));
  EXPECT_TRUE(shape.adapter.train.empty());
  shape.adapter.from = folder;
  const ScratchFolder scratch;
  const SafetensorsFile base(fixtures() / "llama/model.safetensors");
  SafetensorsWriter writer(scratch.path() / "model.safetensors", base.entries());
  for (const TensorEntry& entry : base.entries()) {
    writer.write(entry.name, base.read(entry.name) * (entry.name == kHead ? 2 : 1));
  }
  writer.finish();
  const FirstWeights own(fixtures() / "llama", shape, 0), other(scratch.path(), shape, 0);
  Parameter head = full_parameter(kHead, {shape.vocab_size, shape.hidden_size}, {}, at::kFloat);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    head.tensor = at::empty(head.shape, dtype);
    EXPECT_NO_THROW(own.read(head));
    EXPECT_THROW(other.read(head), InputError);
  }
}

TEST(PeftWeights, RefusesTensorsOfAnotherAdapter) {
  const ScratchFolder scratch;
  const ModelShape base = read_config_json(fixtures() / "llama/config.json");
  const fs::path folder = fixtures() / "adapters/folders/llama";
  ModelShape shape = base;
  shape.adapter = read_peft_folder(folder, base);
  EXPECT_NO_THROW(PeftWeights(folder, shape));
  shape.adapter.targets.pop_back();
  EXPECT_THROW(PeftWeights(folder, shape), InputError) << "a tensor belongs to no adapter";
  shape.adapter.targets.emplace_back("down_proj");
  shape.adapter.rank = 3;
  EXPECT_THROW(PeftWeights(folder, shape), InputError) << "another rank";
}

}  // namespace
}  // namespace meshtrain::testing

// Folders of adapters, of PEFT and for it: tests/fixtures/adapters/folders.

#include "runtime/program/hf/peft_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
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

/// Returns the adapters in the folder of `model` once its configuration has `keys`.
AdapterShape read_with(const std::string& model, const nlohmann::json& keys) {
  const ScratchFolder scratch;
  fs::copy(fixtures() / "adapters/folders" / model, scratch.path() / "adapter");
  const fs::path file = scratch.path() / "adapter" / kPeftConfig;
  nlohmann::json config = nlohmann::json::parse(std::ifstream(file));
  config.update(keys);
  std::ofstream(file) << config;
  return read_peft_folder(scratch.path() / "adapter", read_config_json(fixtures() / model / "config.json"));
}

/// Returns the message with which that folder is refused, from its key on; none when it is read.
std::string refusal_with(const std::string& model, const nlohmann::json& keys) {
  try {
    read_with(model, keys);
  } catch (const InputError& error) {
    const std::string message = error.what(), file = std::string(kPeftConfig) + ": ";
    const size_t end = message.find(file);
    EXPECT_NE(end, std::string::npos) << message;
    return message.substr(end + file.size());
  }
  return "";
}

std::string refusal(const std::string& key, const nlohmann::json& value) {
  return refusal_with("llama", {{key, value}});
}

TEST(PeftConfig, RefusesWhatIsNoPlainLora) {
  EXPECT_EQ(refusal("r", 4), "");
  EXPECT_EQ(refusal("peft_type", "IA3"), "peft_type is not LORA: other adapters are not supported");
  EXPECT_EQ(refusal("use_dora", true), "use_dora is true: DoRA is not supported");
  EXPECT_EQ(refusal("bias", "all"), "bias is \"all\": biases are not trained with adapters");
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    EXPECT_EQ(refusal(key, {{"q_proj", 8}}),
              std::string(key) + " is {\"q_proj\":8}: all adapters of a model must have the same rank and alpha");
  }
  EXPECT_EQ(refusal("init_lora_weights", "pissa").substr(0, 53),
            "init_lora_weights is \"pissa\": it changes the base, wh");
  EXPECT_EQ(refusal("layer_replication", {{0, 1}, {0, 2}}), "layer_replication is [[0,1],[0,2]]: not supported");
}

TEST(PeftConfig, RefusesTiedAdaptersOfEmbeddingAndHead) {
  EXPECT_EQ(refusal("ensure_weight_tying", true), "") << "neither has an adapter";
  const ScratchFolder scratch;
  fs::copy(fixtures() / "adapters/folders/ends", scratch.path() / "adapter");
  const fs::path file = scratch.path() / "adapter" / kPeftConfig;
  nlohmann::json config = nlohmann::json::parse(std::ifstream(file));
  config["ensure_weight_tying"] = true;
  std::ofstream(file) << config;
  ModelShape base = read_config_json(fixtures() / "llama/config.json");
  EXPECT_NO_THROW(read_peft_folder(scratch.path() / "adapter", base));
  base.tie_word_embeddings = true;
  EXPECT_THROW(read_peft_folder(scratch.path() / "adapter", base), InputError);
}

TEST(PeftConfig, TakesRanksAndAlphasAsPeftMatchesThem) {
  const auto alpha = [](const nlohmann::json& keys) {
    const AdapterShape adapter = read_with("llama", keys);
    EXPECT_EQ(adapter.rank, 4) << keys;
    return adapter.alpha;
  };
  EXPECT_EQ(alpha({{"rank_pattern", {{".*_proj", 4}}}, {"r", 8}}), 6);
  EXPECT_EQ(alpha({{"alpha_pattern", {{R"(layers\.\d+\.(self_attn|mlp)\.[a-z]+_proj)", 5}}}}), 5);
  EXPECT_EQ(alpha({{"alpha_pattern", {{"^model.layers.0.self_attn.q_proj", 6}, {"proj", 9}}}}), 6)
      << "\"proj\" ends no name";
  for (const char* python : {"(?P<name>q)_proj", R"(q_proj\Z)", "(q_proj"}) {
    EXPECT_EQ(refusal("alpha_pattern", {{python, 5}}),
              "alpha_pattern " + nlohmann::json(python).dump() +
                  " is a regular expression that is not supported: write the modules' names");
  }
  EXPECT_EQ(refusal("alpha_pattern", {{"q_proj", 5}, {".*q_proj", 6}}),
            "alpha_pattern is {\".*q_proj\":6,\"q_proj\":5}: two keys match model.layers.0.self_attn.q_proj");
  EXPECT_THROW(read_with("llama", {{"rank_pattern", {{".*", 0.5}}}}), InputError);
}

TEST(PeftConfig, TakesTheScaleOfModulesOfSeveralLayers) {
  const double alpha = 3;  // rsLoRA of rank 2; qkv_proj has one adapter of that rank
  EXPECT_EQ(read_with("phi3", {{"alpha_pattern", {{"qkv_proj", alpha}}}}).alpha, alpha);
  for (const char* key : {"qkv_proj", "model.layers.0.self_attn.qkv_proj"}) {
    EXPECT_EQ(refusal_with("phi3", {{"alpha_pattern", {{key, alpha * std::sqrt(3.0)}}}}).substr(0, 16),
              "alpha_pattern is")
        << "that is the scale of three adapters of rank 2 each";
  }
  EXPECT_THROW(read_with("phi3", {{"rank_pattern", {{"qkv_proj", 6}}}}), InputError) << "its A has rank 2";
}

TEST(PeftConfig, TakesATiedHeadAndEmbeddingAsOne) {
  const ScratchFolder scratch;
  const fs::path folder = fixtures() / "adapters/folders/llama";
  fs::copy(folder / kPeftConfig, scratch.path() / kPeftConfig);
  ModelShape base = read_config_json(fixtures() / "llama/config.json");
  base.tie_word_embeddings = true;
  const std::string prefix = kPeftPrefix, embedding = prefix + kEmbedding, head = prefix + kHead;
  const at::Tensor values = at::rand({base.vocab_size, base.hidden_size}), others = values + 1;
  const auto write = [&](const std::map<std::string, at::Tensor>& more) {
    const SafetensorsFile file(folder / kPeftWeights);
    std::map<std::string, at::Tensor> tensors = more;
    for (const TensorEntry& entry : file.entries()) tensors[entry.name] = file.read(entry.name);
    std::vector<TensorEntry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    SafetensorsWriter writer(scratch.path() / kPeftWeights, entries);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.finish();
  };
  for (const std::map<std::string, at::Tensor>& apart : {std::map<std::string, at::Tensor>{{embedding, values}},
                                                         {{head, values}},
                                                         {{embedding, values}, {head, others}}}) {
    write(apart);
    try {
      read_peft_folder(scratch.path(), base);
      ADD_FAILURE() << "PEFT has another head or another embedding";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("which is the same tensor in the base"), std::string::npos);
    }
  }
  write({{embedding, values}, {head, values}});
  base.adapter = read_peft_folder(scratch.path(), base);
  EXPECT_EQ(base.adapter.train, std::vector<std::string>{kEmbedding});
  EXPECT_NO_THROW(PeftWeights(scratch.path(), base));
  base.tie_word_embeddings = false;
  EXPECT_EQ(read_peft_folder(scratch.path(), base).train, (std::vector<std::string>{kHead, kEmbedding}));
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

TEST(PeftConfig, AnotherBaseThanTheFolderNamesIsAWarning) {
  const ScratchFolder scratch;
  const auto warning = [&](const std::string& named, const fs::path& base) {
    std::ofstream(scratch.path() / "adapter_config.json") << nlohmann::json{{"base_model_name_or_path", named}};
    return describe_other_base_name(scratch.path(), base);
  };
  EXPECT_EQ(warning("org/Llama-1B", "/models/Llama-1B"), "") << "the hub's name and a folder";
  EXPECT_EQ(warning("/old/Llama-1B/", "Llama-1B"), "");
  EXPECT_EQ(warning("", "/models/Llama-1B"), "");
  EXPECT_EQ(warning("org/Llama-1B", "/models/Llama-3B"),
            (scratch.path() / "adapter_config.json").string() +
                " says that the adapters belong to org/Llama-1B, but they are used with /models/Llama-3B: with other "
                "weights the results are wrong, and no check can detect it");
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

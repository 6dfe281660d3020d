// Tensors of a Hugging Face folder that the configuration does not use.

#include "runtime/training/model/unused_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/load.h"
#include "runtime/training/safetensors/writer.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

/// A copy of a fixture's weights with further tensors.
class UnusedWeights : public ::testing::Test {
 protected:
  void open(const std::string& fixture, const std::map<std::string, at::Tensor>& more) {
    const fs::path from = fs::path(source_folder()) / "tests/fixtures" / fixture;
    shape_ = read_config_json(from / "config.json");
    const SafetensorsFolder source(from);
    std::map<std::string, at::Tensor> tensors = more;
    for (const std::string& name : source.names()) tensors.try_emplace(name, source.read(name));
    std::vector<TensorEntry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    SafetensorsWriter writer(folder() / "model.safetensors", entries);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.finish();
    embedding_ = source.read("model.embed_tokens.weight");
  }
  fs::path folder() const { return scratch_.path(); }
  std::string described() const {
    std::string text;
    for (const std::string& line : weight_warnings(SafetensorsFolder(folder()), shape_)) text += line;
    return text;
  }
  std::string complaint() const {
    return message<InputError>([&] { check_tied_head(SafetensorsFolder(folder()), shape_); });
  }

  ScratchFolder scratch_;
  ModelShape shape_;
  at::Tensor embedding_;
};

TEST_F(UnusedWeights, AreNamedByLayerInOneShortLine) {
  std::map<std::string, at::Tensor> more = {{"model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({2})},
                                            {"model.rotary_emb.inv_freq", at::ones({2})}};
  open("llama", more);
  EXPECT_EQ(described(), "") << "transformers ignores them in silence";
  more["model.layers.0.self_attn.q_proj.bias"] = at::ones({16});
  open("llama", more);
  EXPECT_EQ(described(), "1 tensor in " + folder().string() +
                             " is not part of the model that its config.json describes, and not used: "
                             "model.layers.0.self_attn.q_proj.bias");
  more["model.layers.1.self_attn.q_proj.bias"] = at::ones({16});
  more["score.weight"] = at::ones({1, 16});
  open("llama", more);
  EXPECT_EQ(described(), "3 tensors in " + folder().string() +
                             " are not part of the model that its config.json describes, and not used: "
                             "model.layers.[0-1].self_attn.q_proj.bias, score.weight");
  for (int layer = 2; layer < 200; ++layer) {
    for (int part = 0; part < 12; ++part) {
      more["model.layers." + std::to_string(layer) + ".part" + std::to_string(part) + std::string(500, 'x')] =
          at::ones({1});
    }
  }
  open("llama", more);
  EXPECT_TRUE(has(described(), "2,379 tensors in ")) << described();
  EXPECT_TRUE(has(described(), "model.layers.[2-199].part0") && has(described(), ", and 6 more names")) << described();
  EXPECT_LT(described().size(), 1300u);
}

TEST_F(UnusedWeights, AnotherHeadUnderTiedEmbeddingsIsRefused) {
  open("qwen2", {});
  EXPECT_EQ(complaint() + described(), "");
  open("qwen2", {{"lm_head.weight", embedding_}});
  EXPECT_EQ(complaint() + described(), "") << "equal";
  open("qwen2", {{"lm_head.weight", embedding_.to(at::kDouble)}});
  EXPECT_EQ(complaint(), "") << "equal in another dtype";
  at::Tensor other = embedding_.clone();
  other[11][3] = 0.25;
  other[50][0] = 0.5;
  open("qwen2", {{"lm_head.weight", other}});
  const std::string wanted = folder().string() +
                             ": config.json has tie_word_embeddings: true, but lm_head.weight is not "
                             "model.embed_tokens.weight: the first difference is at [11, 3], 0.25 in the head and ";
  EXPECT_EQ(complaint().substr(0, wanted.size()), wanted);
  EXPECT_TRUE(has(complaint(), "Set tie_word_embeddings to false there") &&
              has(complaint(), "or remove lm_head.weight"));
  EXPECT_EQ(described(), "") << "it is refused, not listed";
  open("qwen2", {{"lm_head.weight", at::ones({98, 16})}});
  EXPECT_TRUE(has(complaint(), "it has shape [98, 16], the embedding [97, 16]")) << complaint();
  shape_.tie_word_embeddings = false;
  EXPECT_EQ(complaint(), "");
}

TEST_F(UnusedWeights, ALoaderComparesItsPartOfTheHead) {
  open("qwen2", {});
  at::Tensor other = embedding_.clone();
  other[60][3] = 0.25;
  open("qwen2", {{"lm_head.weight", other}});
  const PretrainedWeights weights(folder(), shape_);
  const auto load_rows = [&](int64_t first, int64_t count) {
    Parameter rows = full_parameter("model.embed_tokens.weight", {count, 16}, {}, at::kFloat);
    rows.global_shape = {97, 16};
    rows.box = {{first, 0}, {count, 16}};
    bind(rows, at::zeros({count * 16}), 0);
    return message<InputError>([&] { weights.read(rows); });
  };
  EXPECT_EQ(load_rows(0, 60), "");
  EXPECT_TRUE(has(load_rows(60, 37), "the first difference is at [60, 3]"));
}

TEST_F(UnusedWeights, EqualNansAreEqual) {
  open("qwen2", {});
  at::Tensor with_nan = embedding_.clone();
  with_nan[11][3] = NAN;
  open("qwen2", {{"model.embed_tokens.weight", with_nan}, {"lm_head.weight", with_nan}});
  EXPECT_EQ(complaint(), "");
  open("qwen2", {{"model.embed_tokens.weight", with_nan}, {"lm_head.weight", embedding_}});
  EXPECT_TRUE(has(complaint(), "the first difference is at [11, 3], ") && has(complaint(), " and nan in the embedding"))
      << complaint();
}

TEST_F(UnusedWeights, ATensorInTwoFilesIsNamed) {
  open("llama", {});
  const SafetensorsFolder all(folder());
  std::string listed;
  for (const std::string& name : all.names())
    listed += (listed.empty() ? "\"" : ", \"") + name + "\": \"part.safetensors\"";
  fs::rename(folder() / "model.safetensors", folder() / "part.safetensors");
  {
    SafetensorsWriter writer(folder() / "other.safetensors",
                             {{"b", at::kFloat, {1}}, {"model.norm.weight", at::kFloat, {16}}});
    writer.write("b", at::ones({1}));
    writer.write("model.norm.weight", at::zeros({16}));
    writer.finish();
  }
  write_file(folder() / "model.safetensors.index.json",
             "{\"weight_map\": {" + listed + ", \"b\": \"other.safetensors\"}}");
  EXPECT_TRUE(has(described(), "1 tensor in " + folder().string() +
                                   " is in two files, and read from the file that the index lists (other programs take "
                                   "the last): model.norm.weight"))
      << described();
}

/// Other names for the tensors of a fixture.
class WeightNames : public UnusedWeights {
 protected:
  /// Writes a fixture's weights under other names, which `rename` returns; an empty one leaves a tensor out.
  void write(const std::string& fixture, const std::function<std::string(const std::string&)>& rename) {
    const fs::path from = fs::path(source_folder()) / "tests/fixtures" / fixture;
    shape_ = read_config_json(from / "config.json");
    const SafetensorsFolder source(from);
    std::vector<TensorEntry> entries;
    std::map<std::string, at::Tensor> tensors;
    for (const std::string& name : source.names()) {
      if (!rename(name).empty()) tensors[rename(name)] = source.read(name);
    }
    for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    SafetensorsWriter writer(folder() / "model.safetensors", entries);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.finish();
  }

  /// Expects the weights of the fixture, without a warning.
  void expect_weights_of(const std::string& fixture) {
    const SafetensorsFolder source(fs::path(source_folder()) / "tests/fixtures" / fixture);
    const SafetensorsFolder read = open_weights(folder(), shape_);
    check_weights(read, shape_);
    EXPECT_TRUE(weight_warnings(read, shape_).empty());
    for (const std::string& name : source.names()) EXPECT_TRUE(at::equal(read.read(name), source.read(name))) << name;
  }
  std::string refusal() const {
    return message<InputError>([&] { const PretrainedWeights weights(folder(), shape_); });
  }
};

TEST_F(WeightNames, MayBeThoseOfATiedHeadAlone) {
  write("llama_gqa_tied", [](const std::string& name) { return name == kEmbedding ? kHead : name; });
  expect_weights_of("llama_gqa_tied");
  shape_.tie_word_embeddings = false;
  EXPECT_TRUE(has(refusal(), "has no tensor \"model.embed_tokens.weight\"")) << "a head of its own is no embedding";
}

TEST_F(WeightNames, MayBeThoseOfTheModelWithoutItsHead) {
  const auto without_prefix = [](const std::string& name) {
    return name.starts_with("model.") ? name.substr(6) : name;
  };
  for (const char* fixture : {"llama_gqa_tied", "llama", "phi3"}) {
    write(fixture, without_prefix);
    expect_weights_of(fixture);
  }
  write("llama", [&](const std::string& name) { return name == kHead ? "" : without_prefix(name); });
  EXPECT_TRUE(has(refusal(), "has no tensor \"lm_head.weight\": save the model with its head (AutoModelForCausalLM)"))
      << refusal();
}

TEST_F(WeightNames, OthersAreNamed) {
  write("llama", [](const std::string& name) { return "module." + name; });
  EXPECT_EQ(
      refusal().substr(0, refusal().find(", module.model.layers.[0-1].mlp")),
      folder().string() +
          ": has no tensor \"model.embed_tokens.weight\": save the model under the names of transformers; the names "
          "there are module.lm_head.weight, module.model.embed_tokens.weight, "
          "module.model.layers.[0-1].input_layernorm.weight");
  write("llama", [](const std::string& name) { return name == "model.norm.weight" ? "" : name; });
  EXPECT_TRUE(has(refusal(), "has no tensor \"model.norm.weight\"")) << refusal();
}

TEST_F(WeightNames, OfMxfp4AreRefused) {
  write("gpt_oss", [](const std::string& name) { return name.ends_with("gate_up_proj") ? name + "_blocks" : name; });
  EXPECT_TRUE(has(refusal(), "tensor model.layers.0.mlp.experts.gate_up_proj_blocks belongs to MXFP4 weights: "))
      << refusal();
  EXPECT_TRUE(has(refusal(), "save_original_format=False")) << refusal();
}

TEST_F(UnusedWeights, AFileMayHaveMoreThanItsIndexLists) {
  open("llama", {{"model.layers.0.self_attn.q_proj.bias", at::ones({16})}});
  const SafetensorsFolder all(folder());
  std::string listed;
  for (const std::string& name : all.names()) {
    if (!has(name, "bias")) listed += (listed.empty() ? "" : ", ") + ("\"" + name + "\": \"part.safetensors\"");
  }
  fs::rename(folder() / "model.safetensors", folder() / "part.safetensors");
  write_file(folder() / "model.safetensors.index.json", "{\"weight_map\": {" + listed + "}}");
  EXPECT_TRUE(has(described(), "model.layers.0.self_attn.q_proj.bias")) << described();
}

}  // namespace
}  // namespace meshtrain::testing

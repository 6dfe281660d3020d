// Tensors of a Hugging Face folder that the configuration does not use.

#include "runtime/model/unused_weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "mesh/error.h"
#include "runtime/hf/config_json.h"
#include "runtime/model/load.h"
#include "runtime/safetensors/writer.h"
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
  std::string described() const { return describe_unused(SafetensorsFolder(folder()), shape_); }
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
  EXPECT_EQ(described(), "warning: 1 tensor in " + folder().string() +
                             " is not part of the model that its config.json describes, and not used: "
                             "model.layers.0.self_attn.q_proj.bias");
  more["model.layers.1.self_attn.q_proj.bias"] = at::ones({16});
  more["score.weight"] = at::ones({1, 16});
  open("llama", more);
  EXPECT_EQ(described(), "warning: 3 tensors in " + folder().string() +
                             " are not part of the model that its config.json describes, and not used: "
                             "model.layers.[0-1].self_attn.q_proj.bias, score.weight");
  for (int layer = 2; layer < 200; ++layer) {
    for (int part = 0; part < 12; ++part) {
      more["model.layers." + std::to_string(layer) + ".part" + std::to_string(part) + std::string(500, 'x')] =
          at::ones({1});
    }
  }
  open("llama", more);
  EXPECT_TRUE(has(described(), "warning: 2,379 tensors in ")) << described();
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
    Parameter rows = whole_parameter("model.embed_tokens.weight", {count, 16}, {}, at::kFloat);
    rows.global_shape = {97, 16};
    rows.box = {{first, 0}, {count, 16}};
    bind(rows, at::zeros({count * 16}), 0);
    return message<InputError>([&] { weights.read(rows); });
  };
  EXPECT_EQ(load_rows(0, 60), "");
  EXPECT_TRUE(has(load_rows(60, 37), "the first difference is at [60, 3]"));
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

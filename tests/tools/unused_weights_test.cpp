// Tensors that a Hugging Face folder has and its configuration does not use, in every command that loads one.

#include <map>

#include "mesh/device/aten.h"
#include "runtime/training/safetensors/folder.h"
#include "runtime/training/safetensors/writer.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class UnusedWeightsProgram : public TrainProgram {
 protected:
  UnusedWeightsProgram() {
    write("hf.yaml", R"(model: {hf: hf, init: pretrained}
data: {tokens: tokens.bin, dtype: uint8}
train: {sequence_length: 16, global_batch: 4, steps: 1}
optimizer: {learning_rate: 1.0e-3}
)");
    recipe = path("hf.yaml");
  }

  /// Makes the folder of a tied model with `more` tensors.
  void make_folder(const std::map<std::string, at::Tensor>& more) {
    fs::create_directories(path("hf"));
    const fs::path from = fs::path(source_folder()) / "tests/fixtures/qwen2";
    fs::copy(from / "config.json", path("hf"), fs::copy_options::overwrite_existing);
    const SafetensorsFolder source(from);
    embedding = source.read("model.embed_tokens.weight");
    std::map<std::string, at::Tensor> tensors = more;
    for (const std::string& name : source.names()) tensors.try_emplace(name, source.read(name));
    std::vector<TensorEntry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    SafetensorsWriter writer(path("hf/model.safetensors"), entries);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.finish();
  }

  at::Tensor embedding;
};

TEST_F(UnusedWeightsProgram, AreListedOnceByEveryCommand) {
  make_folder({});
  const std::string line = "meshtrain: warning: 3 tensors in " + path("hf").string() +
                           " are not part of the model that its config.json describes, and not used: "
                           "model.layers.[0-1].mlp.up_proj.bias, model.layers.2.mlp.up_proj.weight\n";
  EXPECT_FALSE(has(train(1, {}).err, "warning"));
  fs::remove_all(run_dir);
  make_folder({{"model.layers.0.mlp.up_proj.bias", at::ones({24})},
               {"model.layers.1.mlp.up_proj.bias", at::ones({24})},
               {"model.layers.2.mlp.up_proj.weight", at::ones({24, 16})},
               {"model.layers.1.self_attn.rotary_emb.inv_freq", at::ones({2})},
               {"lm_head.weight", embedding}});
  for (const int ranks : {1, 2}) {
    const Ending ending = train(ranks, {"--set", "parallel.mesh.tp=auto"});
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(count(ending.err, line), 1) << ending.err;
    fs::remove_all(run_dir);
  }
  EXPECT_EQ(count(run_meshtrain({"train", recipe, "--check"}).err, line), 1);
  const std::vector<std::string> generate = {"generate", path("hf"), "--tokens", "1", "--max-tokens", "1"};
  EXPECT_EQ(count(run_meshtrain(generate).err, line), 1);
  EXPECT_EQ(count(run_meshtrain_on_ranks(2, generate).err, line), 1);
  const Ending imported = run_meshtrain({"checkpoint", "import", path("hf"), recipe, "--run-dir", run_dir});
  EXPECT_EQ(imported.status, 0) << imported.err;
  EXPECT_EQ(imported.err, line);
  EXPECT_FALSE(has(train(1, {"--resume"}).err, "warning: 3 tensors")) << "a checkpoint has no such tensors";
}

TEST_F(UnusedWeightsProgram, AnotherHeadUnderTiedEmbeddingsIsRefusedByEveryCommand) {
  make_folder({});
  at::Tensor head = embedding.clone();
  head[90][3] = 0.25;
  make_folder({{"lm_head.weight", head}});
  const std::string message = path("hf").string() +
                              ": config.json has tie_word_embeddings: true, but lm_head.weight is not "
                              "model.embed_tokens.weight: the first difference is at [90, 3], 0.25 in the head and ";
  const auto begins = [&](const std::string& text) { return text.substr(0, message.size()); };
  EXPECT_EQ(begins(complaint(1, {})), message);
  EXPECT_EQ(begins(complaint(2, {"--mesh", "dp=2", "--set", "parallel.fsdp.mode=full_shard"})), message);
  EXPECT_EQ(begins(only_complaint(run_meshtrain({"train", recipe, "--check"}))), message);
  EXPECT_EQ(begins(only_complaint(run_meshtrain({"generate", path("hf"), "--tokens", "1"}))), message);
  EXPECT_EQ(begins(only_complaint(run_meshtrain({"checkpoint", "import", path("hf"), recipe, "--run-dir", run_dir}))),
            message);
  EXPECT_FALSE(fs::exists(run_dir));
  EXPECT_EQ(begins(complaint(2, {"--mesh", "tp=2"})), message) << "rank 1 has this row";
}

}  // namespace
}  // namespace meshtrain::testing

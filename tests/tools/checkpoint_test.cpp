// Checkpoints to Hugging Face folders and back, as users convert them.

#include <torch/nn/modules/linear.h>

#include <fstream>

#include "mesh/device/aten.h"
#include "runtime/program/hf/carried_over.h"
#include "runtime/training/safetensors/folder.h"
#include "runtime/training/trainer/module_part.h"
#include "runtime/training/trainer/saving.h"
#include "tests/support/files.h"
#include "tests/support/tensor_offset.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class ConvertProgram : public TrainProgram {
 protected:
  static fs::path fixture(const std::string& name) { return fs::path(source_folder()) / "tests/fixtures" / name; }

  void run(int ranks, const Words& arguments) const {
    const Ending ending = train(ranks, arguments);
    EXPECT_EQ(ending.status, 0) << ending.err;
  }
  std::string checkpoint(const Words& arguments) const {
    Words words = {"checkpoint"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const Ending ending = run_meshtrain(words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending.out;
  }
  std::string refusal(const Words& arguments) const {
    Words words = {"checkpoint"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return only_complaint(run_meshtrain(words));
  }
  std::vector<double> losses() const {
    std::vector<double> losses;
    for (const nlohmann::json& line : metrics()) losses.push_back(line.at("loss"));
    return losses;
  }

  /// Returns a copy of the fixture model `name` with a tokenizer in it.
  fs::path folder_with_tokenizer(const std::string& name) const {
    fs::create_directory(path(name));
    for (const char* file : {"config.json", "model.safetensors"}) fs::copy(fixture(name) / file, path(name) / file);
    write(name + "/tokenizer.json", "its tokens");
    write(name + "/chat_template.jinja", "its template");
    return path(name);
  }
};

TEST_F(ConvertProgram, SaysThatACheckpointOfAnotherProgramHasNoRecipe) {
  torch::nn::Linear layer(5, 3);
  const DeviceMesh mesh(MeshLayout({{kDataAxis, 1}}), Group());
  const auto forward = [&](const MicroBatch& batch) { return layer->forward(batch.inputs).square().sum(); };
  const ModelParts parts = {
      std::make_shared<ModulePart>(*layer, std::vector<std::string>(), forward, mesh, FsdpOptions())};
  Trainer trainer(parts, index_of(parts), mesh, {});
  fs::create_directory(run_dir);
  save(trainer, {.step = 3}, run_dir / "checkpoints");
  const std::string folder = run_dir / "checkpoints/step-00000003",
                    problem =
                        "the checkpoint " + folder +
                        " has no recipe: a program with libmeshtrain.so saved it, and only that program knows the "
                        "model; load it there, or examine it with meshtrain checkpoint inspect and verify";
  EXPECT_EQ(refusal({"export", folder, path("out")}), problem);
  EXPECT_EQ(only_complaint(run_meshtrain({"generate", run_dir, "--prompt", "a"})), problem);
  EXPECT_EQ(only_complaint(run_meshtrain({"evaluate", run_dir, "--tokens", path("tokens.bin")})), problem);
  EXPECT_EQ(only_complaint(train(1, {"--resume"})), problem);
  EXPECT_TRUE(has(checkpoint({"inspect", folder}), "weight"));
  checkpoint({"verify", folder});
}

// The vocabulary leaves padding on tp ranks; Qwen3 has its own norms; both ways copy the tokenizer.
TEST_F(ConvertProgram, ExportsAnyMeshAsTheRunDoes) {
  const fs::path hf = folder_with_tokenizer("qwen3");
  write("hf.yaml", R"(model: {hf: qwen3}
data: {tokens: tokens.bin, dtype: uint8}
train: {sequence_length: 16, global_batch: 4, steps: 3, precision: bf16_mixed}
optimizer: {learning_rate: 1.0e-2}
)");
  recipe = path("hf.yaml");
  run(8, {"--mesh", "dp=2,tp=2,cp=2", "--set", "parallel.fsdp.mode=full_shard", "--set", "checkpoint.every=2", "--set",
          "train.export=" + path("by run").string()});
  const std::string out = checkpoint({"export", run_dir, path("by command")});
  EXPECT_EQ(out, path("by command").string() + ": the weights of step 3, 24 tensors in BF16, 14,080 bytes, with the " +
                     "tokenizer of " + hf.string() + "\n");
  const auto files = contents(path("by command"));
  EXPECT_EQ(files, contents(path("by run")));
  EXPECT_EQ(files.at("tokenizer.json"), "its tokens");
  EXPECT_EQ(files.at("chat_template.jinja"), "its template");
  EXPECT_TRUE(has(files.at("generation_config.json"), "\"eos_token_id\": 2"));
  EXPECT_TRUE(has(files.at("config.json"), "\"max_position_embeddings\": 256"));
  EXPECT_EQ(SafetensorsFolder(path("by command")).entry("model.embed_tokens.weight").shape,
            (std::vector<int64_t>{97, 16}));

  fs::create_directory(path("other"));
  write("other/vocab.json", "other tokens");
  fs::remove_all(hf);
  const std::string without = checkpoint({"export", run_dir / "checkpoints/step-00000002", path("small files"),
                                          "--dtype", "fp32", "--max-file-size", "8KiB", "--tokenizer", path("other")});
  EXPECT_TRUE(has(without, ": the weights of step 2, 24 tensors in F32, ")) << without;
  EXPECT_TRUE(has(without, ", with the tokenizer of " + path("other").string() +
                               "; nothing was copied from the recipe's model.hf: " + hf.string() +
                               " no longer exists; it has no eos_token_id, because no token is known"))
      << without;
  const auto small = contents(path("small files"));
  EXPECT_TRUE(small.contains("model.safetensors.index.json") && small.contains("vocab.json"));
  EXPECT_FALSE(small.contains("tokenizer.json"));
  for (const auto& [name, content] : small) EXPECT_LT(content.size(), 12'000u) << name;
}

TEST_F(ConvertProgram, WhatEndsATextIsWhatEndedDocuments) {
  run(1, {"--set", "checkpoint.every=4"});
  EXPECT_TRUE(has(checkpoint({"export", run_dir, path("without")}),
                  " bytes; it has no eos_token_id, because no token is known to end a text: meshtrain checkpoint "
                  "export can take it from --tokenizer\n"));
  EXPECT_FALSE(has(contents(path("without")).at("config.json"), "eos_token_id"));
  run_dir = path("documents");
  run(1,
      {"--set", "checkpoint.every=4", "--set", "data.documents=7", "--set", "train.export=" + path("by run").string()});
  EXPECT_TRUE(has(checkpoint({"export", run_dir, path("by command"), "--dtype", "fp32"}), " bytes\n"));
  const auto files = contents(path("by command"));
  EXPECT_TRUE(has(files.at("config.json"), "\"eos_token_id\": 7"));
  EXPECT_TRUE(has(files.at("generation_config.json"), "\"eos_token_id\": 7"));
  EXPECT_EQ(files, contents(path("by run")));
}

TEST_F(ConvertProgram, WithoutAFolderPositionsAreThoseOfASequence) {
  run(2, {"--mesh", "dp=2", "--set", "checkpoint.every=4"});
  checkpoint({"export", run_dir, path("out")});
  const auto files = contents(path("out"));
  EXPECT_EQ(files.size(), 2u);
  EXPECT_TRUE(has(files.at("config.json"), "\"max_position_embeddings\": 16"));
}

TEST_F(ConvertProgram, WhatIsDamagedIsNamedAndNothingAppears) {
  run(2, {"--mesh", "dp=2", "--set", "checkpoint.every=4", "--set", "parallel.fsdp.mode=full_shard"});
  const fs::path file = run_dir / "checkpoints/step-00000004/rank-00001.safetensors";
  const SafetensorsFile stored(file);
  std::string weight;
  for (const TensorEntry& entry : stored.entries()) {
    if (has(entry.name, "up_proj.weight[")) weight = entry.name;
  }
  ASSERT_NE(weight, "");
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(tensor_offset(stored, weight));
  const int before = stream.peek();
  stream.put(static_cast<char>(before ^ 1));
  stream.close();
  const std::string message = refusal({"export", run_dir, path("out")});
  EXPECT_EQ(message.substr(0, message.find(" its checksum")), file.string() + ": " + weight + " is damaged:");
  fs::remove(file);
  EXPECT_TRUE(has(refusal({"export", run_dir, path("out")}), " is unreadable: cannot read " + file.string()));
  EXPECT_FALSE(fs::exists(path("out")) || fs::exists(path("out.partial")));
}

TEST_F(ConvertProgram, ExportIsRefusedWithAReason) {
  run(1, {"--set", "checkpoint.every=4"});
  EXPECT_TRUE(has(refusal({"export", path("none"), path("out")}), "there is no checkpoint in "));
  EXPECT_TRUE(has(refusal({"export", run_dir, run_dir}), "the folder is not empty; name a new one, or empty it"));
  EXPECT_TRUE(has(refusal({"export", run_dir, path("out"), "--dtype", "int8"}), "--dtype"));
  EXPECT_TRUE(has(refusal({"export", run_dir, path("out"), "--max-file-size", "much"}), "--max-file-size"));
  EXPECT_TRUE(has(refusal({"export", run_dir, path("out"), "--max-file-size", "0"}), "--max-file-size: 0 bytes"));
  EXPECT_EQ(refusal({"export", run_dir, path("out"), "--tokenizer", run_dir}),
            "--tokenizer " + run_dir.string() + ": the folder has no tokenizer files");
  EXPECT_TRUE(has(refusal({"export", run_dir, path("out"), "--tokenizer", path("tokens.bin")}),
                  "tokens.bin: this is not the name of a tokenizer's file: give its tokenizer.json"));
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(ConvertProgram, TheTokenizerIsOneOfTheModel) {
  run(1, {"--set", "checkpoint.every=4"});
  const fs::path gpt2 = fs::path(source_folder()) / "tests/tokenizer/fixtures/gpt2";
  for (const fs::path& given : {gpt2, gpt2 / "tokenizer.json"}) {
    EXPECT_EQ(refusal({"export", run_dir, path("out"), "--tokenizer", given}),
              "--tokenizer " + given.string() +
                  ": its ids go up to 1100, but those of the model up to 63: give the tokenizer "
                  "that the model was trained with");
  }
  EXPECT_FALSE(fs::exists(path("out")));
  run_dir = path("large");
  run(1, {"--set", "checkpoint.every=4", "--set", "model.vocab_size=1101"});
  checkpoint({"export", run_dir, path("folder"), "--tokenizer", gpt2});
  checkpoint({"export", run_dir, path("file"), "--tokenizer", gpt2 / "tokenizer.json"});
  EXPECT_EQ(contents(path("folder")), contents(path("file")));
  EXPECT_EQ(contents(path("file")).at("tokenizer.json"), content(gpt2 / "tokenizer.json"));
}

TEST_F(ConvertProgram, TheTokenizerOfTheDataIsOneOfTheModel) {
  fs::create_directory(path("own"));
  fs::create_directory(path("other"));
  write("own/tokenizer.json", "not yet one");
  run(1, {"--set", "checkpoint.every=4", "--set", "data.tokenizer=" + path("own").string()});
  const fs::path gpt2 = fs::path(source_folder()) / "tests/tokenizer/fixtures/gpt2";
  fs::copy_file(gpt2 / "tokenizer.json", path("own") / "tokenizer.json", fs::copy_options::overwrite_existing);
  const std::string refused = refusal({"export", run_dir, path("out")});
  EXPECT_TRUE(
      refused.starts_with("data.tokenizer of the run's recipe: " + path("own").string() + ": its ids go up to "))
      << refused;
  EXPECT_TRUE(has(refused, ", but those of the model up to 63: give the tokenizer that the model was trained with"));
  EXPECT_FALSE(fs::exists(path("out")));
  write("other/vocab.json", "of a kind that is not read");
  checkpoint({"export", run_dir, path("out"), "--tokenizer", path("other")});
  EXPECT_EQ(contents(path("out")).at("vocab.json"), "of a kind that is not read");
}

// A model that was trained with another tokenizer than the folder's is exported with the one of its training.
TEST_F(ConvertProgram, ARunExportsTheTokenizerOfItsData) {
  const fs::path gpt2 = source_folder() + "/tests/tokenizer/fixtures/gpt2";
  for (const fs::path& given : {gpt2, gpt2 / "tokenizer.json"}) {
    const fs::path out = path(given.filename().string() + " out");
    run_dir = path(given.filename().string() + " run");
    run(1, {"--set", "model.vocab_size=1101", "--set", "data.tokenizer=" + given.string(), "--set",
            "train.export=" + out.string()});
    const auto files = contents(out);
    for (const std::string& name : tokenizer_files(gpt2)) EXPECT_EQ(files.at(name), content(gpt2 / name)) << name;
    const Ending text = run_meshtrain({"generate", out, "--prompt", "Hello", "--max-tokens", "3", "--json"});
    EXPECT_EQ(text.status, 0) << text.err;
  }
}

// The longest way: a folder, a run from it, an export, an import, and a run from that.
TEST_F(ConvertProgram, GoesOnFromAnImportAsFromTheFolder) {
  write("hf.yaml", "model: {hf: " + fixture("llama3_rope").string() + R"(}
data: {tokens: tokens.bin, dtype: uint8}
train: {sequence_length: 16, global_batch: 4, steps: 3, precision: bf16_mixed}
optimizer: {learning_rate: 1.0e-2}
)");
  recipe = path("hf.yaml");
  run(2, {"--mesh", "tp=2", "--set", "checkpoint.every=3"});
  checkpoint({"export", run_dir, path("first"), "--dtype", "fp32"});
  const Words steps = {"--mesh", "dp=2,tp=2", "--set", "model.hf=" + path("first").string(), "--set", "train.seed=7"};
  run_dir = path("pretrained");
  run(4, steps);
  const std::vector<double> expected = losses();

  run_dir = path("imported");
  const std::string out = checkpoint({"import", path("first"), recipe, "--run-dir", run_dir});
  const fs::path step0 = run_dir / "checkpoints/step-00000000";
  EXPECT_EQ(out,
            step0.string() + ": the weights of " + path("first").string() + "; begin with meshtrain train --resume\n");
  EXPECT_TRUE(has(checkpoint({"inspect", run_dir}), "\n  step 0: weights alone, before the first step\n"));
  EXPECT_TRUE(has(checkpoint({"verify", run_dir}), "every byte is intact"));
  EXPECT_TRUE(has(complaint(1, {}), " holds a run; continue it with --resume"));
  Words resume = steps;
  resume.emplace_back("--resume");
  const Ending ending = train(4, resume);
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "\nbegins with the weights of " + step0.string() + "\n")) << ending.out;
  EXPECT_TRUE(has(ending.out, "\n  train.seed: 7, was 42\n")) << "nothing was trained with the other seed";
  EXPECT_FALSE(has(ending.out, "parallel.mesh.")) << "an import has no mesh: " << ending.out;
  expect_steps(metrics(), 3);
  EXPECT_EQ(losses(), expected);
  EXPECT_EQ(contents(path("first")).at("model.safetensors"), [&] {
    checkpoint({"export", step0, path("second"), "--dtype", "fp32"});
    return contents(path("second")).at("model.safetensors");
  }());
}

TEST_F(ConvertProgram, ImportIsRefusedWithEveryDifference) {
  const fs::path hf = fixture("llama");
  const fs::path folder = path("run");
  const auto differences = [&](const Words& more) {
    Words words = {"import", hf, recipe, "--run-dir", folder};
    words.insert(words.end(), more.begin(), more.end());
    return refusal(words);
  };
  const std::string message = differences({});
  EXPECT_EQ(message.substr(0, message.find("model.h")), "the model in " + hf.string() + " differs from the recipe's: ");
  EXPECT_TRUE(has(message, "model.hidden_size: 32, was 16 there; model.intermediate_size: 48, was 24 there; "))
      << message;
  EXPECT_TRUE(has(message, "model.vocab_size: 64, was 97 there")) << message;
  EXPECT_FALSE(fs::exists(folder));

  // The config.json of the recipe's model, with other tensors.
  run(1, {"--set", "checkpoint.every=4"});
  checkpoint({"export", run_dir, path("own")});
  EXPECT_TRUE(has(differences({}), "model.")) << "another model is seen before the run";
  EXPECT_TRUE(has(refusal({"import", path("own"), recipe, "--run-dir", run_dir}), "holds a run; continue it with"));
  fs::copy(hf / "model.safetensors", path("own/model.safetensors"), fs::copy_options::overwrite_existing);
  const std::string tensors = refusal({"import", path("own"), recipe, "--run-dir", path("new")});
  EXPECT_TRUE(has(tensors, "model.embed_tokens.weight: [64, 32], but [97, 16] in it; ")) << tensors;
  EXPECT_TRUE(has(tensors, "; and ") && has(tensors, " more")) << tensors;
  fs::remove(path("own/model.safetensors"));
  EXPECT_TRUE(has(refusal({"import", path("own"), recipe, "--run-dir", path("new")}), "there is no model.safetensors"));
  EXPECT_FALSE(fs::exists(path("new")));
}

TEST_F(ConvertProgram, AnImportThatFailsLeavesNoRun) {
  run(1, {"--set", "checkpoint.every=4"});
  checkpoint({"export", run_dir, path("own")});
  const Words words = {"/bin/sh",
                       "-c",
                       "ulimit -f 8; exec \"$0\" \"$@\"",
                       build_folder() + "/meshtrain",
                       "checkpoint",
                       "import",
                       path("own"),
                       recipe,
                       "--run-dir",
                       path("new")};
  EXPECT_TRUE(has(only_complaint(run_program(words), 1), "rank-00000.safetensors: File too large"));
  fs::create_directories(path("new/checkpoints/step-00000000.tmp"));  // left behind by a killed process
  checkpoint({"import", path("own"), recipe, "--run-dir", path("new")});
  EXPECT_EQ(std::distance(fs::directory_iterator(path("new/checkpoints")), {}), 2) << "it, and whose it is";
}

}  // namespace
}  // namespace meshtrain::testing

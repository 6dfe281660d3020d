// Folders and paths that are given as a model and hold something else.

#include "runtime/training/safetensors/folder_kind.h"

#include <gtest/gtest.h>

#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class FolderKind : public ::testing::Test {
 protected:
  /// Returns the description of a folder with these files.
  std::string kind(const std::vector<std::string>& files, bool has_config = false) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    for (const std::string& file : files) write_file(folder_ / file, "x");
    if (has_config) write_file(folder_ / "config.json", "{}");
    const std::string text = has_config ? describe_no_weights(folder_) : describe_no_model(folder_);
    const std::string subject = has_config ? "there is no model.safetensors, nor its index, in " + folder_.string()
                                           : "there is no config.json in " + folder_.string();
    EXPECT_TRUE(text.starts_with(subject)) << text;
    return text.substr(subject.size());
  }

  ScratchFolder scratch_;
  fs::path folder_ = scratch_.path() / "m";
};

TEST_F(FolderKind, IsNamedWithTheWayOn) {
  const std::string path = folder_.string();
  EXPECT_EQ(kind({}), "");
  EXPECT_EQ(kind({}, true), "");
  EXPECT_EQ(kind({"pytorch_model.bin"}, true),
            ": it has PyTorch pickles, pytorch_model.bin: python3 -c \"from transformers import AutoModelForCausalLM "
            "as M; M.from_pretrained('" +
                path + "', torch_dtype='auto').save_pretrained('" + path +
                "-safetensors')\" writes safetensors: name that folder, and put the tokenizer's files there");
  EXPECT_TRUE(has(kind({"pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"}, true), "pickles"));
  for (const bool has_config : {false, true}) {
    EXPECT_TRUE(has(kind({"adapter_config.json", "adapter_model.safetensors"}, has_config),
                    ": it is a PEFT adapter: give the folder of its model, and this one in addition, in a recipe as "
                    "adapter.from: " +
                        path + ", for generate and evaluate as --adapter " + path));
  }
  EXPECT_TRUE(has(kind({"__0_0.distcp", ".metadata"}), ": it is a distributed checkpoint of PyTorch (DCP): "));
  EXPECT_TRUE(has(kind({"latest_checkpointed_iteration.txt"}), ": it is a checkpoint of Megatron-LM: "));
  EXPECT_TRUE(has(kind({"mp_rank_00/model_optim_rng.pt"}), "Megatron-LM")) << "an iteration's folder";
  EXPECT_TRUE(has(kind({"common.pt", "__0_0.distcp", ".metadata"}), "Megatron-LM")) << "its newer form";
  EXPECT_TRUE(has(kind({"zero_to_fp32.py", "latest"}), ": python3 " + path + "/zero_to_fp32.py " + path + " FOLDER "));
  EXPECT_TRUE(has(kind({"manifest.json"}), ": meshtrain checkpoint export " + path + " FOLDER makes one"));
  EXPECT_TRUE(has(kind({"checkpoints/step-00000002/manifest.json"}), "meshtrain checkpoint export"));
  EXPECT_TRUE(has(kind({"snapshots/abc/config.json", "blobs/x"}), ": name " + path + "/snapshots/abc"));
  EXPECT_TRUE(has(kind({"checkpoint-500/config.json"}), ": give one, such as " + path + "/checkpoint-500"));
  EXPECT_TRUE(has(kind({"params.json", "consolidated.00.pth"}), "in its publisher's own format"));
  EXPECT_TRUE(has(kind({"m-Q4.gguf"}, true), "it has m-Q4.gguf, of llama.cpp"));
  EXPECT_TRUE(has(kind({"tf_model.h5"}, true), "of TensorFlow or Flax"));
  EXPECT_TRUE(has(kind({"model-00001-of-00002.safetensors"}, true), "the index of its files is missing"));
}

TEST_F(FolderKind, IsADownloadThatHasNotEnded) {
  EXPECT_EQ(kind({"model.safetensors.part"}, true),
            ": its download is not complete, as model.safetensors.part shows: run it again");
  EXPECT_TRUE(has(kind({".cache/huggingface/download/x.4d7a.incomplete"}, true),
                  "as .cache/huggingface/download/x.4d7a.incomplete shows"));
}

TEST_F(FolderKind, IsNoFolderAtAll) {
  EXPECT_EQ(describe_no_model(scratch_.path() / "meta-llama/Llama-3.1-8B"),
            "there is no folder " + scratch_.path().string() +
                "/meta-llama/Llama-3.1-8B: meshtrain does not download models, but hf download meta-llama/Llama-3.1-8B "
                "--local-dir " +
                scratch_.path().string() + "/meta-llama/Llama-3.1-8B fetches a model of the Hugging Face hub");
  EXPECT_TRUE(has(describe_no_model(folder_), "hf download ORG/NAME --local-dir " + folder_.string()));
  write_file(folder_, "x");
  EXPECT_EQ(describe_no_model(folder_), folder_.string() + " is a file: name the folder of the model");
  fs::remove(folder_);
  fs::create_symlink("gone", folder_);
  EXPECT_TRUE(has(describe_no_model(folder_), "it is a link to gone, which does not exist"));
}

TEST_F(FolderKind, AdviceIsForWhatIsNotKnown) {
  EXPECT_EQ(kind({"config.json"}, true), "");
  EXPECT_TRUE(describe_no_weights(folder_, "fetch them").ends_with(": fetch them"));
  write_file(folder_ / "m.gguf", "x");
  EXPECT_FALSE(has(describe_no_weights(folder_, "fetch them"), "fetch them"));
  write_file(folder_ / "model.safetensors", "x");
  EXPECT_TRUE(has_weights(folder_));
}

}  // namespace
}  // namespace meshtrain::testing

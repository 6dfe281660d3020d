#include "runtime/hf/export.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "mesh/error.h"
#include "runtime/hf/config_json.h"
#include "runtime/hf/safetensors.h"
#include "tests/runtime/data_files.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;
using testing::read_file;
using testing::ScratchFolder;
using testing::SmallDisk;
using testing::write_file;

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() {
    shape_.hidden_size = 8;
    shape_.intermediate_size = 16;
    shape_.num_hidden_layers = 1;
    shape_.num_attention_heads = shape_.num_key_value_heads = 2;
    shape_.head_dim = 4;
    shape_.vocab_size = 10;
    for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}) {
      entries_.push_back({name, at::kFloat, {10, 8}});
    }
  }
  static at::Tensor value(const TensorEntry& entry) {
    return at::full(entry.shape, static_cast<double>(entry.name.size()), entry.dtype);
  }
  void write_all(FolderWriter& writer) const {
    for (const TensorEntry& entry : entries_) writer.write(entry.name, value(entry));
  }
  std::string refusal() const {
    return message<InputError>([&] { check_export_folder(folder_); });
  }
  bool nothing_left() const { return std::filesystem::is_empty(scratch_.path()); }

  ScratchFolder scratch_;
  std::filesystem::path folder_ = scratch_.path() / "out";
  ModelShape shape_;
  std::vector<TensorEntry> entries_;
};

TEST_F(ExportTest, OneFileAndConfig) {
  {
    FolderWriter writer(folder_ / "", shape_, {}, entries_);
    write_all(writer);
    EXPECT_FALSE(std::filesystem::exists(folder_));
    writer.finish();
  }
  EXPECT_EQ(read_file(folder_ / "config.json"), write_config_json(shape_, "float32"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "model.safetensors.index.json"));
  const SafetensorsFolder read(folder_);
  for (const TensorEntry& entry : entries_) EXPECT_TRUE(at::equal(read.read(entry.name), value(entry)));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch_.path()), {}), 1) << "no FOLDER.partial";
}

TEST_F(ExportTest, SeveralFilesAndTheirIndex) {
  for (TensorEntry& entry : entries_) entry.dtype = at::kBFloat16;  // 160 bytes each
  entries_.push_back({"model.layers.0.mlp.up_proj.weight", at::kBFloat16, {100, 8}});
  {
    FolderWriter writer(folder_, shape_, {}, entries_, 320);
    for (size_t i = entries_.size(); i-- > 0;) writer.write(entries_[i].name, value(entries_[i]));  // any order
    writer.finish();
  }
  const auto index = nlohmann::json::parse(read_file(folder_ / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 3 * 160 + 1600);
  EXPECT_EQ(index["weight_map"]["model.norm.weight"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["lm_head.weight"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["model.layers.0.mlp.up_proj.weight"], "model-00003-of-00003.safetensors");
  const SafetensorsFolder read(folder_);
  EXPECT_EQ(read.names().size(), 4u);
  for (const TensorEntry& entry : entries_) EXPECT_TRUE(at::equal(read.read(entry.name), value(entry)));
  EXPECT_TRUE(has(read_file(folder_ / "config.json"), "\"torch_dtype\": \"bfloat16\""));
}

TEST_F(ExportTest, ATiedHeadIsLeftOut) {
  shape_.tie_word_embeddings = true;
  FolderWriter writer(folder_, shape_, {}, entries_);
  write_all(writer);
  writer.finish();
  EXPECT_EQ(SafetensorsFolder(folder_).names(),
            (std::vector<std::string>{"model.embed_tokens.weight", "model.norm.weight"}));
}

TEST_F(ExportTest, RefusesAPlaceThatIsTaken) {
  EXPECT_EQ(refusal(), "");
  std::filesystem::create_directory(folder_);
  EXPECT_EQ(refusal(), "") << "an empty folder will do";
  {
    FolderWriter writer(folder_, shape_, {}, entries_);
    write_all(writer);
    writer.finish();
  }
  EXPECT_TRUE(has(refusal(), "cannot export to " + folder_.string() + ": the folder is not empty")) << refusal();
  EXPECT_THROW(FolderWriter(folder_, shape_, {}, entries_), InputError);
  folder_ = folder_ / "config.json";
  EXPECT_TRUE(has(refusal(), "it is a file"));
  folder_ = folder_ / "deeper" / "still";
  EXPECT_TRUE(has(refusal(), "config.json is not a folder")) << refusal();
  folder_ = scratch_.path() / "new" / "deep";
  EXPECT_EQ(refusal(), "");
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() / "new")) << "checking leaves nothing";
  EXPECT_TRUE(has(message<InputError>([] { check_export_folder("/proc/weights"); }),
                  "cannot export to /proc/weights: its folder cannot be made: "));
  FolderWriter writer(folder_, shape_, {}, entries_);
  write_all(writer);
  writer.finish();
  EXPECT_TRUE(std::filesystem::exists(folder_ / "model.safetensors"));
}

TEST_F(ExportTest, AnUnfinishedExportLeavesNothing) {
  write_file(scratch_.path() / "out.partial" / "model.safetensors", "of a run that was killed");
  {
    FolderWriter writer(folder_, shape_, {}, entries_);
    writer.write("model.norm.weight", value(entries_[1]));
    EXPECT_THROW(writer.write("model.norm.weight", value(entries_[1])), std::invalid_argument);
    EXPECT_THROW(writer.write("other", value(entries_[1])), std::invalid_argument);
    EXPECT_THROW(writer.finish(), std::logic_error);
  }
  EXPECT_TRUE(nothing_left());
}

TEST_F(ExportTest, WrongShapesAndDtypesAreRefusedBeforeAnythingIsWritten) {
  shape_.qk_norm = true;
  EXPECT_THROW(FolderWriter(folder_, shape_, {}, entries_), InputError);
  shape_.qk_norm = false;
  entries_[0].dtype = at::kLong;
  EXPECT_THROW(FolderWriter(folder_, shape_, {}, entries_), std::invalid_argument);
  EXPECT_THROW(FolderWriter(folder_, shape_, {}, {}), std::invalid_argument);
  EXPECT_TRUE(nothing_left());
}

TEST_F(ExportTest, AFullDiskLeavesNothing) {
  std::string error;
  {
    const SmallDisk disk(100);
    error = message<std::runtime_error>([&] { FolderWriter writer(folder_, shape_, {}, entries_); });
  }
  EXPECT_TRUE(has(error, "config.json")) << error;
  EXPECT_TRUE(nothing_left());
  {
    FolderWriter writer(folder_, shape_, {}, entries_);
    const SmallDisk disk(800);
    error = message<std::runtime_error>([&] { write_all(writer); });
  }
  EXPECT_TRUE(has(error, "model.safetensors: ")) << error;
  EXPECT_TRUE(nothing_left());
}

}  // namespace
}  // namespace meshtrain

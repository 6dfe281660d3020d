#include "runtime/program/hf/export.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/training/safetensors/folder.h"
#include "tests/support/faults/faults.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::content;
using testing::has;
using testing::inject_faults;
using testing::message;
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
  ~ExportTest() override { inject_faults(""); }
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
  EXPECT_EQ(content(folder_ / "config.json"), write_config_json(shape_, "float32"));
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
  const auto index = nlohmann::json::parse(content(folder_ / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 3 * 160 + 1600);
  EXPECT_EQ(index["weight_map"]["model.norm.weight"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["lm_head.weight"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["model.layers.0.mlp.up_proj.weight"], "model-00003-of-00003.safetensors");
  const SafetensorsFolder read(folder_);
  EXPECT_EQ(read.names().size(), 4u);
  for (const TensorEntry& entry : entries_) EXPECT_TRUE(at::equal(read.read(entry.name), value(entry)));
  EXPECT_TRUE(has(content(folder_ / "config.json"), "\"torch_dtype\": \"bfloat16\""));
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
  write_file(scratch_.path() / "out.partial" / "model.safetensors.partial", "of a run that was killed");
  write_file(scratch_.path() / "out.partial" / "config.json", "{}");
  {
    FolderWriter writer(folder_, shape_, {}, entries_);
    writer.write("model.norm.weight", value(entries_[1]));
    EXPECT_THROW(writer.write("model.norm.weight", value(entries_[1])), std::invalid_argument);
    EXPECT_THROW(writer.write("other", value(entries_[1])), std::invalid_argument);
    EXPECT_THROW(writer.finish(), std::logic_error);
  }
  EXPECT_TRUE(nothing_left());
}

TEST_F(ExportTest, LinksAreFollowed) {
  const std::filesystem::path disk = scratch_.path() / "disk";
  std::filesystem::create_directories(disk / "empty");
  for (const char* name : {"empty", "absent"}) {
    std::filesystem::create_symlink("disk/" + std::string(name), folder_);
    std::filesystem::create_symlink("out", scratch_.path() / "link to a link");
    const std::filesystem::path asked = scratch_.path() / "link to a link";
    EXPECT_EQ(check_export_folder(asked / ""), (asked / "").string() + ", a link to " + (disk / name).string());
    FolderWriter writer(asked, shape_, {}, entries_);
    write_all(writer);
    writer.finish();
    EXPECT_TRUE(std::filesystem::is_symlink(asked) && std::filesystem::is_symlink(folder_)) << name;
    EXPECT_TRUE(std::filesystem::exists(disk / name / "model.safetensors")) << name;
    EXPECT_TRUE(std::filesystem::exists(folder_ / "model.safetensors")) << name;
    std::filesystem::remove(folder_);
    std::filesystem::remove(asked);
  }
  std::filesystem::create_symlink("out", folder_);
  EXPECT_EQ(refusal(), "cannot export to " + folder_.string() + ": its symbolic links form a circle");
}

/// Returns what `ask` prints when `folder` is a mount point of `disk`, in a separate mount namespace; nothing when no
/// namespace can be made.
std::string said_with_mount(const std::filesystem::path& disk, const std::filesystem::path& folder,
                            const std::function<std::string()>& ask) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    std::string said;
    if (unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        mount(disk.c_str(), folder.c_str(), "tmpfs", disk == "none" ? 0 : MS_BIND, nullptr) == 0) {
      said = ask();
    }
    const ssize_t written = write(ends[1], said.data(), said.size());
    _exit(written == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string said(4096, '\0');
  const ssize_t length = read(ends[0], said.data(), said.size());
  close(ends[0]);
  waitpid(child, nullptr, 0);
  said.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return said;
}

TEST_F(ExportTest, AMountPointIsRefusedAtTheStart) {
  EXPECT_TRUE(has(message<InputError>([] { check_export_folder("/dev/shm"); }), "/dev/shm: it is a mount point"));
  std::filesystem::create_directories(folder_);
  std::filesystem::create_directories(scratch_.path() / "disk");
  const std::string expected = "cannot export to " + folder_.string() +
                               ": it is a mount point, which a rename cannot replace: name a folder in it";
  for (const std::filesystem::path& disk : {std::filesystem::path("none"), scratch_.path() / "disk"}) {
    const std::string said = said_with_mount(disk, folder_, [&] { return refusal(); });
    if (said.empty()) GTEST_SKIP() << "nothing can be mounted here";
    EXPECT_EQ(said, expected) << disk;
  }
}

TEST_F(ExportTest, WhatIsDoneAtTheEndIsTriedAtTheStart) {
  for (const bool exists : {false, true}) {
    if (exists) std::filesystem::create_directory(folder_);
    inject_faults("rename:/out:EXDEV");
    EXPECT_EQ(refusal(), "cannot export to " + folder_.string() +
                             ": its folder cannot be renamed: Invalid cross-device link: name one elsewhere");
    inject_faults("");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch_.path()), {}), exists ? 1 : 0);
  }
  struct stat status {
  }, same{};
  ASSERT_EQ(stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(refusal(), "");
  ASSERT_EQ(stat(folder_.c_str(), &same), 0);
  EXPECT_EQ(status.st_ino, same.st_ino) << "the folder that was there";
}

TEST_F(ExportTest, CompleteWeightsAreNeverRemoved) {
  const std::filesystem::path partial = scratch_.path() / "out.partial";
  for (const int64_t max_bytes : {int64_t{320}, kMostFileBytes}) {
    std::string error;
    {
      FolderWriter writer(folder_, shape_, {}, entries_, max_bytes);
      write_all(writer);
      inject_faults("rename:out.partial\n:EXDEV");
      error = message<std::runtime_error>([&] { writer.finish(); });
      inject_faults("");
    }
    EXPECT_EQ(error, "the weights are complete in " + partial.string() + ", but cannot be renamed to " +
                         folder_.string() + ": Invalid cross-device link: rename the folder");
    EXPECT_TRUE(has(refusal(), partial.string() +
                                   " has the complete weights of an export that could not be renamed: "
                                   "rename it to " +
                                   folder_.string() + ", or move it away"))
        << refusal();
    EXPECT_THROW(FolderWriter(folder_, shape_, {}, entries_), InputError);
    std::filesystem::rename(partial, folder_);
    const SafetensorsFolder read(folder_);
    for (const TensorEntry& entry : entries_) EXPECT_TRUE(at::equal(read.read(entry.name), value(entry)));
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(ExportTest, WeightsThatCannotBeSeenAreNotRemoved) {
  const std::filesystem::path partial = scratch_.path() / "out.partial";
  for (const std::string name : {"model.safetensors", "model.safetensors.index.json"}) {
    write_file(partial / name, "weights");
    for (const std::string error : {"EIO", "ESTALE"}) {
      for (const std::string& unseen : {"/" + name, std::string("out.partial$")}) {
        inject_faults("stat:" + unseen + ":" + error);
        const std::string said = message<InputError>([&] { FolderWriter(folder_, shape_, {}, entries_); });
        inject_faults("");
        EXPECT_TRUE(has(said, "cannot export to " + folder_.string() + ": " + partial.string())) << unseen << said;
        EXPECT_EQ(content(partial / name), "weights") << unseen;
      }
    }
    std::filesystem::remove_all(partial);
  }
}

TEST_F(ExportTest, ARenameWhoseAnswerWasLostIsDone) {
  for (const std::string error : {"ENOENT", "ESTALE"}) {
    FolderWriter writer(folder_, shape_, {}, entries_);
    write_all(writer);
    inject_faults("rename:out.partial\n:+" + error);
    EXPECT_EQ(message<std::runtime_error>([&] { writer.finish(); }), "") << error;
    inject_faults("");
    const SafetensorsFolder read(folder_);
    for (const TensorEntry& entry : entries_) EXPECT_TRUE(at::equal(read.read(entry.name), value(entry)));
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(ExportTest, OthersFilesAreNotRemoved) {
  const std::filesystem::path partial = scratch_.path() / "out.partial";
  write_file(partial / "thesis.tex", "of somebody");
  EXPECT_TRUE(has(refusal(), (partial / "thesis.tex").string() +
                                 " is in the temporary folder of the export but not part of one: move it away"));
  std::filesystem::remove_all(partial);
  std::filesystem::create_directory(scratch_.path() / "elsewhere");
  std::filesystem::create_symlink("elsewhere", partial);
  EXPECT_TRUE(has(refusal(), "is not a plain folder: move it away"));
  std::filesystem::remove(partial);
  FolderWriter writer(folder_, shape_, {}, entries_);
  EXPECT_TRUE(has(refusal(), "another process is writing it, as " + partial.string()));
  write_all(writer);
  writer.finish();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 2) << "config.json and the weights";
}

TEST_F(ExportTest, EverythingIsSynchronised) {
  folder_ = scratch_.path() / "new" / "out";
  int num_syncs = 0;
  for (std::string error = "none yet"; !error.empty(); ++num_syncs) {
    std::filesystem::remove_all(scratch_.path() / "new");
    inject_faults("fsync:" + scratch_.path().string() + ":EIO:" + std::to_string(num_syncs) + ":1");
    error = message<std::runtime_error>([&] {
      FolderWriter writer(folder_, shape_, {}, entries_);
      write_all(writer);
      writer.finish();
    });
    inject_faults("");
  }
  EXPECT_EQ(num_syncs - 1, 6) << "two files and twice their folder; the folder that got a name, and that of new";
}

TEST_F(ExportTest, WrongShapesAndDtypesAreRefusedBeforeAnythingIsWritten) {
  shape_.qkv_bias = true;
  EXPECT_THROW(FolderWriter(folder_, shape_, {}, entries_), InputError);
  shape_.qkv_bias = false;
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

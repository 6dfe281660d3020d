#include "mesh/base/files/download.h"

#include <gtest/gtest.h>

#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::ScratchFolder;
using testing::write_file;

TEST(Download, IsUnfinishedByItsName) {
  for (const char* name : {"a.incomplete", "a.jsonl.gz.part", "a.crdownload", "a.aria2"}) {
    EXPECT_TRUE(is_unfinished_download(name)) << name;
  }
  for (const char* name : {"part", "a.parts", "incomplete.txt", "a.gz"}) {
    EXPECT_FALSE(is_unfinished_download(name)) << name;
  }
  const ScratchFolder folder;
  EXPECT_EQ(unfinished_hub_download(folder.path()), "");
  write_file(folder.path() / ".cache/huggingface/download/a.metadata", "x");
  EXPECT_EQ(unfinished_hub_download(folder.path()), "");
  const std::filesystem::path open = folder.path() / ".cache/huggingface/download/data/b.4d7a.incomplete";
  write_file(open, "x");
  EXPECT_EQ(unfinished_hub_download(folder.path()), open);
}

}  // namespace
}  // namespace meshtrain

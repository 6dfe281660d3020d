#include "mesh/base/files/file_bytes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

namespace meshtrain {
namespace {

TEST(FileBytesTest, MoveWithTheirSize) {
  FileBytes bytes(3);
  std::memcpy(bytes.data(), "abc", 3);
  const FileBytes moved = std::move(bytes);
  EXPECT_EQ(moved.text(), "abc");
  EXPECT_EQ(bytes.size(), 0) << "the moved-from object is empty";  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(FileBytes().text(), "");
}

}  // namespace
}  // namespace meshtrain

#include "mesh/base/files/writable_folder.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

std::string complaint_about(const fs::path& folder) {
  return message<InputError>([&] { check_writable_or_new(folder, "--offload"); });
}

TEST(WritableFolder, MayBeNewWhereItsParentIsNot) {
  const ScratchFolder scratch;
  const fs::path here = scratch.path();
  write_file(here / "file", "");
  for (const fs::path& folder : {here, here / "new", here / "new/"}) EXPECT_EQ(complaint_about(folder), "") << folder;
  EXPECT_FALSE(fs::exists(here / "new")) << "is not made";
  EXPECT_EQ(complaint_about(here / "new/newer"), "--offload: " + (here / "new/newer").string() +
                                                     " cannot be made: the folder " + (here / "new").string() +
                                                     " does not exist");
  EXPECT_EQ(complaint_about(here / "file/new"), "--offload: " + (here / "file/new").string() + " cannot be made: " +
                                                    (here / "file").string() + " is not a folder");
}

TEST(WritableFolder, ExistsInPart) {
  const ScratchFolder scratch;
  EXPECT_EQ(existing_part(scratch.path() / "a/b/c"), scratch.path());
  EXPECT_EQ(existing_part(scratch.path()), scratch.path());
}

}  // namespace
}  // namespace meshtrain::testing

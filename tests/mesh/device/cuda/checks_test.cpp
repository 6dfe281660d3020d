// The checks that precede the use of a GPU and need no GPU.
#include "mesh/device/cuda/checks.h"

#include <gtest/gtest.h>

#include <sstream>

namespace meshtrain {
namespace {

TEST(CudaArchitectures, CodeRunsOnItsMajorVersionAndPtxOnAllThatFollow) {
  EXPECT_TRUE(runs_on("90", 9, 0));
  EXPECT_TRUE(runs_on("90", 10, 0));
  EXPECT_FALSE(runs_on("90", 8, 9));
  EXPECT_TRUE(runs_on("80-real", 8, 6));
  EXPECT_FALSE(runs_on("80-real", 9, 0));
  EXPECT_FALSE(runs_on("89-real", 8, 6));
  EXPECT_TRUE(runs_on("80-virtual", 9, 0));
  EXPECT_TRUE(runs_on("80-real;90", 12, 0));
  EXPECT_TRUE(runs_on("90a", 9, 0));
  EXPECT_FALSE(runs_on("90a", 10, 0));
  EXPECT_FALSE(runs_on("", 9, 0));
  EXPECT_TRUE(runs_on("100-real", 10, 3));
}

TEST(CudaLibraries, FilesOfOneLibraryAreToldFromTheMapOfTheProcess) {
  const std::string line = "7f00-7f01 r-xp 00000000 08:01 42                 ";
  std::istringstream maps(line + "/a/libnccl.so.2\n" + line + "/a/libnccl.so.2\n" + line + "/b/c/libnccl.so.2.28.9\n" +
                          line + "/a/libnccl-net.so\n" + line + "[heap]\n" + line + "/a/libcudart.so.13\n");
  EXPECT_EQ(mapped_files(maps, "libnccl.so"), (std::vector<std::string>{"/a/libnccl.so.2", "/b/c/libnccl.so.2.28.9"}));
}

}  // namespace
}  // namespace meshtrain

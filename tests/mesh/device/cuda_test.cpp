// The checks before a GPU is used that need no GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "mesh/base/error.h"
#include "mesh/device/cuda/checks.h"
#include "mesh/device/cuda/plugin.h"
#include "tests/support/scratch.h"

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

std::string refusal_from(const std::filesystem::path& folder) {
  try {
    open_cuda_plugin(folder);
  } catch (const InputError& error) {
    return error.what();
  }
  return "opened";
}

TEST(CudaPlugin, SaysThatItIsNotThereOrWhyItCannotBeOpened) {
  const testing::ScratchFolder folder;
  const std::filesystem::path build = std::getenv("MESHTRAIN_BUILD");
  const bool builds_plugin = std::filesystem::exists(build / "CMakeFiles/meshtrain_cuda.dir");
  EXPECT_EQ(refusal_from(folder.path()),
            "device: cuda: libmeshtrain_cuda.so is not in " + folder.path().string() + ": " +
                (builds_plugin
                     ? "run tools/build release meshtrain_cuda, which builds it"
                     : "build where nvcc of CUDA 13 is found (build/release/configure.log says why it was left out)") +
                ", or use device: cpu");
  std::ofstream(folder.path() / "libmeshtrain_cuda.so") << "no library";
  const std::string refusal = refusal_from(folder.path());
  EXPECT_TRUE(refusal.starts_with("device: cuda: libmeshtrain_cuda.so cannot be opened: ")) << refusal;
  EXPECT_TRUE(refusal.ends_with(": run tools/setup --cuda and build again, or use device: cpu")) << refusal;
}

}  // namespace
}  // namespace meshtrain

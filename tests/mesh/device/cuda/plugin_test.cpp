#include "mesh/device/cuda/plugin.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "mesh/base/error.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

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

// The CUDA plug-in, opened in a process that may have no GPU.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/device/cuda/plugin.h"
#include "tests/support/files.h"

namespace meshtrain {
namespace {

/// Returns the operators of meshtrain:: that a CPU computes.
std::vector<c10::OperatorHandle> operators() {
  std::vector<c10::OperatorHandle> all;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("meshtrain::")) continue;
    const auto found = c10::Dispatcher::singleton().findOp(name);
    const bool of_the_host = name.name.starts_with("meshtrain::host_");
    if (found && !of_the_host && found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) all.push_back(*found);
  }
  return all;
}

TEST(CudaPlugin, OpensRegistersItsKernelsAndSaysWhatIsMissing) {
  const std::string build = testing::build_folder();
  if (!std::filesystem::exists(std::filesystem::path(build) / "libmeshtrain_cuda.so")) GTEST_SKIP() << "not built";

  for (const c10::OperatorHandle& op : operators()) {
    EXPECT_FALSE(op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) << op.operator_name().name;
  }
  CudaPlugin& plugin = open_cuda_plugin(build);
  for (const c10::OperatorHandle& op : operators()) {
    EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) << op.operator_name().name;
  }
  EXPECT_EQ(&open_cuda_plugin(build), &plugin);

  if (is_cuda_driver_there()) return;
  try {
    plugin.prepare();
    FAIL() << "there is no driver";
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("device: cuda: this machine has no NVIDIA driver")) << message;
  }
}

}  // namespace
}  // namespace meshtrain

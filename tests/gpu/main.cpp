// Checks of the plug-in's results on a GPU, against fp64 on the host. They need a GPU, so they are not part of ctest:
//
//   build/release/tests/gpu_tests                      MESHTRAIN_SEED=N: the numbers of an earlier run

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <random>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "mesh/device/cuda/plugin.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {

int64_t many(int64_t n) {
  return n;
}

void poison(const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> poisoned;
  for (const at::Tensor& tensor : like) {
    for (int i = 0; i < 3; ++i) {
      poisoned.push_back(at::full(tensor.sizes(), std::numeric_limits<double>::quiet_NaN(),
                                  at::TensorOptions(gpu()).dtype(tensor.dtype())));
    }
  }
}

}  // namespace meshtrain::testing

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  try {
    const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
    meshtrain::CudaPlugin& plugin = meshtrain::open_cuda_plugin(folder);
    plugin.prepare();
    plugin.use(0);
    std::printf("%s\n", plugin.describe(0).c_str());
  } catch (const meshtrain::InputError& error) {
    std::printf("gpu_tests: nothing is tested: %s\n", error.what());
    return 2;
  }
  const char* asked = std::getenv("MESHTRAIN_SEED");
  const uint64_t seed = asked != nullptr ? std::strtoull(asked, nullptr, 10) : std::random_device{}();
  std::printf("MESHTRAIN_SEED=%llu\n", static_cast<unsigned long long>(seed));
  at::manual_seed(seed);
  return RUN_ALL_TESTS();
}

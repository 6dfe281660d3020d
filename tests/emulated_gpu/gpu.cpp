// The emulated GPU for tests of tests/gpu.
#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "mesh/device/cuda/plugin.h"
#include "tests/gpu/reference.h"
#include "tests/support/world.h"

namespace meshtrain::testing {

int64_t many(int64_t n) {
  return n / 16 | 1;
}

// The emulation of LibTorch allocates only memory full of NaN (torch/memory.cpp).
void poison(const std::vector<at::Tensor>&) {}

namespace {

class Gpu : public ::testing::Environment {
 public:
  void SetUp() override {
    CudaPlugin& plugin = open_cuda_plugin();
    plugin.use(world().rank() % plugin.prepare());
  }
};

[[maybe_unused]] const auto* const kGpu = ::testing::AddGlobalTestEnvironment(new Gpu);

}  // namespace
}  // namespace meshtrain::testing

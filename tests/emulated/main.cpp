// The kernels of the CUDA plug-in, compiled for the CPU, against fp64: the tests of tests/gpu, on a machine without a
// GPU.   MESHTRAIN_SEED=N: other numbers

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "mesh/device/aten.h"
#include "tests/emulated/operators.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {

at::Device gpu() {
  return at::kCPU;
}

int64_t many(int64_t n) {
#ifdef __SANITIZE_ADDRESS__
  constexpr int64_t kPart = 64;
#else
  constexpr int64_t kPart = 16;
#endif
  return n / kPart | 1;
}

// LibTorch allocates only memory full of NaN here, see main().
void poison(const std::vector<at::Tensor>&) {}

}  // namespace meshtrain::testing

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  const char* asked = std::getenv("MESHTRAIN_SEED");
  const uint64_t seed = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 1;
  std::printf("MESHTRAIN_SEED=%llu\n", static_cast<unsigned long long>(seed));
  at::manual_seed(seed);
  at::globalContext().setDeterministicAlgorithms(/*b=*/true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  meshtrain::emulated::replace_cuda();
  int status = RUN_ALL_TESTS();
  if (::testing::GTEST_FLAG(filter) == "*") {
    for (const std::string& name : meshtrain::emulated::not_called()) {
      std::printf("%s has a kernel for CUDA that no test of tests/gpu calls\n", name.c_str());
      status = 1;
    }
  }
  return status;
}

// What the plug-in computes on a GPU, against the same in fp64 on the host. Needs a GPU, so it is no part of ctest:
//
//   build/release/tests/gpu_tests                      MESHTRAIN_SEED=N: the numbers of an earlier run

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <random>

#include "mesh/cuda/plugin.h"
#include "mesh/error.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {

at::Tensor fresh(at::IntArrayRef shape) {
  return at::randn(shape, at::kDouble);
}

double error_of(const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_grad;
  const at::Tensor seen = a.to(at::kCPU).to(at::kDouble), wanted = b.to(at::kCPU).to(at::kDouble);
  EXPECT_EQ(seen.sizes(), wanted.sizes());
  if (seen.sizes() != wanted.sizes()) return std::numeric_limits<double>::infinity();
  if (seen.numel() == 0) return 0;
  const double difference = (seen - wanted).norm().item<double>(), length = wanted.norm().item<double>();
  if (!(difference >= 0)) return std::numeric_limits<double>::infinity();
  return difference == 0 ? 0 : difference / length;
}

void poison(const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> poisoned;
  for (const at::Tensor& tensor : like) {
    for (int i = 0; i < 3; ++i) {
      poisoned.push_back(at::full(tensor.sizes(), std::numeric_limits<double>::quiet_NaN(),
                                  at::TensorOptions(at::kCUDA).dtype(tensor.dtype())));
    }
  }
}

void expect_as_on_host(const std::string& what, const Precision& precision, const std::vector<at::Tensor>& inputs,
                       const Function& function, size_t num_fixed) {
  const auto& [dtype, tolerance] = precision;
  std::vector<at::Tensor> host, device;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor rounded = inputs[i].to(dtype);
    const bool wanted = i + num_fixed < inputs.size();
    host.push_back(rounded.to(at::kDouble).set_requires_grad(wanted));
    device.push_back(rounded.to(at::kCUDA).set_requires_grad(wanted));
  }
  poison(device);
  const std::vector<at::Tensor> expected = function(host), seen = function(device);
  ASSERT_EQ(seen.size(), expected.size());
  std::vector<at::Tensor> host_gradients, gradients;
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].scalar_type(), dtype) << what;
    EXPECT_LE(error_of(seen[i], expected[i]), tolerance) << what << ", result " << i << ", " << dtype;
    const at::Tensor gradient = fresh(expected[i].sizes()).to(dtype);
    host_gradients.push_back(gradient.to(at::kDouble));
    gradients.push_back(gradient.to(at::kCUDA));
  }
  torch::autograd::backward(expected, host_gradients);
  poison(device);
  torch::autograd::backward(seen, gradients);
  for (size_t i = 0; i + num_fixed < inputs.size(); ++i) {
    EXPECT_LE(error_of(device[i].grad(), host[i].grad()), tolerance) << what << ", gradient " << i << ", " << dtype;
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

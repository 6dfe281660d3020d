#include "tests/gpu/reference.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "mesh/device/aten.h"
#include "mesh/device/pinned_memory.h"

namespace meshtrain::testing {

double tolerance_for(int64_t count, double tolerance) {
  return count < 1000 ? 3 * tolerance : tolerance;
}

void wait_for_gpu() {
  pinned_zeros(1, at::kByte, gpu(), "");  // memory is unpinned only then
}

at::Tensor fresh(at::IntArrayRef shape) {
  return at::randn(shape, at::kDouble);
}

double error_of(const at::Tensor& a, const at::Tensor& b) {
  return error_of(a, b, b);
}

double error_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& size) {
  const at::NoGradGuard no_grad;
  const at::Tensor seen = a.to(at::kCPU).to(at::kDouble), wanted = b.to(at::kCPU).to(at::kDouble);
  EXPECT_EQ(seen.sizes(), wanted.sizes());
  if (seen.sizes() != wanted.sizes()) return std::numeric_limits<double>::infinity();
  if (seen.numel() == 0) return 0;
  const double difference = (seen - wanted).norm().item<double>();
  const double length = size.to(at::kCPU).to(at::kDouble).norm().item<double>();
  if (!(difference >= 0)) return std::numeric_limits<double>::infinity();
  return difference == 0 ? 0 : difference / length;
}

void expect_as_on_host(const std::string& what, const DtypeTolerance& precision, const std::vector<at::Tensor>& inputs,
                       const Function& function, size_t num_fixed) {
  const at::ScalarType dtype = precision.dtype;
  const auto expect_near = [&](const at::Tensor& a, const at::Tensor& b, const char* kind, size_t i) {
    EXPECT_LE(error_of(a, b), tolerance_for(b.numel(), precision.tolerance))
        << what << ", " << kind << " " << i << ", " << dtype;
  };
  std::vector<at::Tensor> host, device;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor rounded = inputs[i].to(dtype);
    const bool wanted = i + num_fixed < inputs.size();
    host.push_back(rounded.to(at::kDouble).set_requires_grad(wanted));
    device.push_back(rounded.to(gpu()).set_requires_grad(wanted));
  }
  poison(device);
  const std::vector<at::Tensor> expected = function(host), seen = function(device);
  ASSERT_EQ(seen.size(), expected.size());
  std::vector<at::Tensor> host_gradients, gradients;
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].scalar_type(), dtype) << what;
    expect_near(seen[i], expected[i], "result", i);
    const at::Tensor gradient = fresh(expected[i].sizes()).to(dtype);
    host_gradients.push_back(gradient.to(at::kDouble));
    gradients.push_back(gradient.to(gpu()));
  }
  torch::autograd::backward(expected, host_gradients);
  poison(device);
  torch::autograd::backward(seen, gradients);
  for (size_t i = 0; i + num_fixed < inputs.size(); ++i) {
    expect_near(device[i].grad(), host[i].grad(), "gradient", i);
  }
}

}  // namespace meshtrain::testing

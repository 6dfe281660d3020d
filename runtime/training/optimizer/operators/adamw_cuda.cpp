#include <torch/library.h>

#include <optional>

#include "mesh/device/cuda/tensors.h"
#include "runtime/training/optimizer/operators/adamw_kernel.h"

namespace meshtrain::cuda {
namespace {

void step(at::Tensor& values, at::Tensor& first_moment, at::Tensor& second_moment, at::Tensor& gradients,
          const std::optional<at::Tensor>& rounded, const at::Tensor& learning_rate, const at::Tensor& count,
          const std::optional<at::Tensor>& factor, const std::optional<at::Tensor>& skip, double rate, double beta1,
          double beta2, double weight_decay, double eps) {
  AdamWBuffers buffers{};
  buffers.values_element = element_of("adamw_", values);
  buffers.gradients_element = element_of("adamw_", gradients);
  TORCH_CHECK(buffers.values_element != Element::Half, "adamw_: weights in fp16: use fp32 or bf16");
  check_alike("adamw_", values, {first_moment, second_moment});
  for (const at::Tensor& tensor : {values, first_moment, second_moment, gradients}) {
    TORCH_CHECK(tensor.is_contiguous() && tensor.numel() == values.numel(), "adamw_: ", tensor.sizes(),
                " does not match ", values.sizes());
  }
  TORCH_CHECK(learning_rate.scalar_type() == at::kDouble && count.scalar_type() == at::kFloat &&
                  learning_rate.device() == values.device() && count.device() == values.device() &&
                  gradients.device() == values.device(),
              "adamw_: learning rate (fp64) and step (fp32) must be on the device of the weights, ", values.device());
  if (rounded) {
    buffers.rounded_element = element_of("adamw_", *rounded);
    TORCH_CHECK(buffers.values_element == Element::Float && buffers.rounded_element != Element::Float &&
                    rounded->is_contiguous() && rounded->numel() == values.numel() &&
                    rounded->device() == values.device(),
                "adamw_: fp32 weights are rounded to as many in bf16 or fp16");
    buffers.rounded = rounded->data_ptr();
  }
  if (factor) {
    TORCH_CHECK(factor->scalar_type() == at::kDouble && factor->device() == values.device(),
                "adamw_: the gradients' factor is an fp64 scalar on ", values.device());
  }
  if (skip) {
    TORCH_CHECK(skip->scalar_type() == at::kBool && skip->device() == values.device(),
                "adamw_: whether to skip is a bool on ", values.device());
  }
  const TensorDeviceGuard device(values);
  buffers.values = values.data_ptr();
  buffers.first_moment = first_moment.data_ptr();
  buffers.second_moment = second_moment.data_ptr();
  buffers.gradients = gradients.const_data_ptr();
  adamw(buffers, values.numel(),
        {learning_rate.const_data_ptr<double>(), count.const_data_ptr<float>(),
         factor ? factor->const_data_ptr<double>() : nullptr, skip ? skip->const_data_ptr<bool>() : nullptr, rate,
         beta1, beta2, weight_decay, eps},
        device.stream());
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("adamw_", step);
}

}  // namespace
}  // namespace meshtrain::cuda

#include <torch/library.h>

#include "mesh/device/cuda/tensors.h"
#include "tensor_parallel/operators/cross_entropy_kernel.h"

namespace meshtrain::cuda {
namespace {

void check_rows(const char* name, const at::Tensor& logits, std::initializer_list<at::Tensor> numbers) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous(), name, ": logits ", logits.sizes(), " are not contiguous");
  for (const at::Tensor& number : numbers) {
    TORCH_CHECK(number.scalar_type() == at::kFloat && number.is_contiguous() && number.device() == logits.device(),
                name, ": numbers of the rows are contiguous fp32 on ", logits.device());
  }
}

void check_labels(const char* name, const at::Tensor& column, std::initializer_list<at::Tensor> flags) {
  TORCH_CHECK(column.scalar_type() == at::kLong && column.is_contiguous(), name, ": labels are not int64");
  for (const at::Tensor& flag : flags) {
    TORCH_CHECK(flag.scalar_type() == at::kBool && flag.is_contiguous() && flag.device() == column.device(), name,
                ": flags of the rows are contiguous bools on ", column.device());
  }
}

at::Tensor statistics_of(at::Tensor& logits, const at::Tensor& column, const at::Tensor& absent) {
  constexpr const char* kName = "cross_entropy_statistics";
  const Element element = element_of(kName, logits);
  check_rows(kName, logits, {});
  check_labels(kName, column, {absent});
  const TensorDeviceGuard device(logits);
  const int64_t rows = logits.size(0);
  at::Tensor statistics = at::empty({3, rows}, logits.options().dtype(at::kFloat));
  float* numbers = statistics.data_ptr<float>();
  row_statistics(element, logits.const_data_ptr(), column.const_data_ptr<int64_t>(), absent.const_data_ptr<bool>(),
                 numbers, numbers + rows, numbers + 2 * rows, rows, logits.size(1), device.stream());
  return statistics;
}

void gradients_of(at::Tensor& logits, const at::Tensor&, const at::Tensor& max, const at::Tensor& sum_exp,
                  const at::Tensor& column, const at::Tensor& absent, const at::Tensor& ignored,
                  const at::Tensor& upstream) {
  constexpr const char* kName = "cross_entropy_gradients_";
  const Element element = element_of(kName, logits);
  check_rows(kName, logits, {max, sum_exp, upstream});
  check_labels(kName, column, {absent, ignored});
  const TensorDeviceGuard device(logits);
  const GradientRows of{max.const_data_ptr<float>(),      sum_exp.const_data_ptr<float>(),
                        column.const_data_ptr<int64_t>(), absent.const_data_ptr<bool>(),
                        ignored.const_data_ptr<bool>(),   upstream.const_data_ptr<float>()};
  row_gradients(element, logits.data_ptr(), of, logits.size(0), logits.size(1), device.stream());
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("cross_entropy_statistics", statistics_of);
  library.impl("cross_entropy_gradients_", gradients_of);
}

}  // namespace
}  // namespace meshtrain::cuda

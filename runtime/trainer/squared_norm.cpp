#include "runtime/trainer/squared_norm.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "mesh/operator.h"

namespace meshtrain {
namespace {

at::Tensor square_of_norm(const at::Tensor& elements) {
  return at::linalg_vector_norm(elements, 2, at::OptionalIntArrayRef{}, false, at::kDouble).square_();
}

at::Tensor square_on_gpu(const at::Tensor& elements) {
  const at::Tensor from = elements.contiguous();
  return at::empty({}, elements.options().dtype(at::kDouble));
}

}  // namespace

at::Tensor squared_norm(const at::Tensor& elements) {
  static const Operator<at::Tensor(const at::Tensor&)> norm("meshtrain::squared_norm");
  return norm(elements);
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&square_of_norm, &square_on_gpu>(library, "squared_norm(Tensor elements) -> Tensor");
}

}  // namespace meshtrain

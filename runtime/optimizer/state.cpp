#include "runtime/optimizer/state.h"

#include <ATen/ops/zeros_like.h>

namespace meshtrain {

at::Tensor make_state(const at::Tensor& values) {
  return at::zeros_like(values);
}

}  // namespace meshtrain

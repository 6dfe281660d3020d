#include "tests/emulated_gpu/cuda/model.h"

namespace meshtrain::emulated {

const Model& model() {
  static constexpr Model kModel{
      .name = "null GPU", .bytes = size_t{80} << 30, .multiprocessors = 132, .computes = false};  // an H100's sizes
  return kModel;
}

}  // namespace meshtrain::emulated

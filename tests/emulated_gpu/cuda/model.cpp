#include "model.h"

namespace meshtrain::emulated {

const Model& model() {
  static constexpr Model kModel{.name = "emulated GPU",
                                .bytes = size_t{2} << 30,
                                .multiprocessors = 3 /* few, so that kernels loop */,
                                .computes = true};
  return kModel;
}

}  // namespace meshtrain::emulated

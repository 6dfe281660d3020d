#pragma once

#include <cstdint>

#include "mesh/device/host_lanes.h"

namespace meshtrain::adamw_host {

/// One AdamW update of fp32 values. Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.
struct Update {
  float decay;            ///< 1 - learning rate x weight decay: what values are multiplied by first
  float beta1, beta2;     ///< of the moments
  float rest1, rest2;     ///< 1 - beta1 and 1 - beta2, subtracted in fp64: fp32 has no digits left near 1
  float step_size;        ///< learning rate / (1 - beta1^t)
  float root_correction;  ///< 1 / sqrt(1 - beta2^t)
  float eps;              ///< added to the root of the corrected second moment
  float gradient_factor;  ///< multiplies gradients
};

/// Updates `count` elements in one pass over memory with the instructions of Set (host_lanes.h). Gradients and
/// `rounded`, which receives the new values and may be null, are float or c10::BFloat16.
template <class Set, class G, class R>
MESHTRAIN_LANES void update(const Update& with, int64_t count, const G* gradients, float* values, float* first_moment,
                            float* second_moment, R* rounded);

}  // namespace meshtrain::adamw_host

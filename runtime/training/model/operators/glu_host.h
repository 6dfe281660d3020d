#pragma once

#include <cstdint>

#include "mesh/device/host_lanes.h"

namespace meshtrain::glu_host {

/// Loops of glu() over rows in memory, each row once, with the instructions of Set (host_lanes.h); T is float or
/// c10::BFloat16. gate_up [rows, 2 features] has `features` a multiple of kLanes; values are rounded once, in the
/// results.

/// Writes activation(gate) up to `out` [rows, features].
template <class Set, class T>
MESHTRAIN_LANES void forward(const T* gate_up, int64_t rows, int64_t features, bool gelu, T* out);

/// Writes the gradients of gate and up, side by side, to `grad_gate_up` [rows, 2 features].
template <class Set, class T>
MESHTRAIN_LANES void backward(const T* grad, const T* gate_up, int64_t rows, int64_t features, bool gelu,
                              T* grad_gate_up);

/// Writes what both of these write for rows that are multiplied by `weights` [rows], where `grad` is the gradient of a
/// row's results without its weight. activation(gate) up times the weight replaces `grad`; `dots` [rows] gets
/// <grad, activation(gate) up>, the gradients of the weights. Rounds where separate operators would round.
template <class Set, class T>
MESHTRAIN_LANES void weighted_backward(T* grad, const T* gate_up, const float* weights, int64_t rows, int64_t features,
                                       bool gelu, T* grad_gate_up, float* dots);

}  // namespace meshtrain::glu_host

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/device/cuda/element.h"

namespace meshtrain::cuda {

/// The function of the gate.
enum class Gate { Silu, GeluTanh };

/// Computes gate(g) * u: gate_up [rows, 2 features] -> out [rows, features], contiguous. Reads and writes each element
/// once.
void glu(Element element, Gate gate, const void* gate_up, void* out, int64_t rows, int64_t features,
         cudaStream_t stream);

/// Computes the gradient of gate_up, out [rows, 2 features], from grad [rows, features], contiguous.
void glu_backward(Element element, Gate gate, const void* grad, const void* gate_up, void* out, int64_t rows,
                  int64_t features, cudaStream_t stream);

}  // namespace meshtrain::cuda

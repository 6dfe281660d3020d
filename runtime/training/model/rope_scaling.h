#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "runtime/training/model/shape.h"

namespace meshtrain {

/// The frequencies that rotary angles are computed from.
struct RopeFrequencies {
  at::Tensor inverse;           ///< [D/2], on the CPU: the angle of position 1
  double attention_factor = 1;  ///< of cos and sin
};

/// Computes the frequencies of heads of shape.head_dim features, scaled as `shape.rope_scaling` says. In fp32 they are
/// those of transformers 5, operator for operator (its modeling_rope_utils.py); with `dtype` fp64 the same operators
/// run in fp64. `length`: the positions of a sequence; longrope has other frequencies for long ones. Throws InputError
/// for a scaling that `rope_mistake` finds impossible, and for dynamic beyond the trained length.
///
///   linear  all divided by the factor (kaiokendev, "Extending context to 8K", 2023)
///   llama3  long wavelengths divided, short ones kept, blended between the two
///   yarn    the same by a ramp over the features (Peng et al., "YaRN", 2023)
///   longrope  each divided by a number of its own (Ding et al., "LongRoPE", 2024)
///   dynamic   unscaled, for sequences within max_position_embeddings; longer ones are refused
RopeFrequencies rope_frequencies(const ModelShape& shape, at::ScalarType dtype, int64_t length = 0);

/// Returns the frequencies of sliding layers with a theta of their own: rope_local_base_freq, unscaled.
RopeFrequencies local_rope_frequencies(const ModelShape& shape, at::ScalarType dtype);

struct RopeMistake {
  std::string key;   ///< of rope_scaling
  std::string what;  ///< continues a sentence after the key: "is 1: it must be above low_freq_factor 4"
};

/// Returns what makes `shape.rope_scaling` impossible beside the rest of `shape`; std::nullopt when nothing does.
std::optional<RopeMistake> rope_mistake(const ModelShape& shape);

}  // namespace meshtrain

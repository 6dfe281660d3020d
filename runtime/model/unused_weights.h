#pragma once

#include <string>

#include "mesh/box.h"
#include "runtime/model/shape.h"
#include "runtime/safetensors/folder.h"

namespace meshtrain {

inline constexpr const char* kEmbedding = "model.embed_tokens.weight";

/// Returns one line about the tensors in `weights` that a model of `shape` does not use, grouped by layer and cut when
/// there are many; empty when there are none. As in transformers the head of tied embeddings and tables of rotary
/// frequencies do not count. Reads no data.
std::string describe_unused(const SafetensorsFolder& weights, const ModelShape& shape);

/// Checks a head that is in `weights` although `shape` ties it to the embedding: in `box`, a part of the embedding,
/// both must have the same values, since transformers would not tie them otherwise. Throws InputError that names the
/// first difference. Returns at once when there is no such head; otherwise reads both in this box.
void check_tied_head(const SafetensorsFolder& weights, const ModelShape& shape, const Box& box);

/// Checks all of it.
void check_tied_head(const SafetensorsFolder& weights, const ModelShape& shape);

}  // namespace meshtrain

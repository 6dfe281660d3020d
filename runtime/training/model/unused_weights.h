#pragma once

#include <string>
#include <vector>

#include "mesh/box.h"
#include "runtime/training/model/shape.h"
#include "runtime/training/safetensors/folder.h"

namespace meshtrain {

/// Returns a warning about tensors in `weights` that a model of `shape` does not use, and one about tensors in two
/// files; none when there are no such tensors. As in transformers, the head of tied embeddings and tables of rotary
/// frequencies do not count as unused. Reads no data.
std::vector<std::string> weight_warnings(const SafetensorsFolder& weights, const ModelShape& shape);

/// Checks a head that is in `weights` although `shape` ties it to the embedding: in `box`, a part of the embedding,
/// both must have the same values, since transformers would not tie them otherwise. Throws InputError that names the
/// first difference. Returns at once when there is no such head; otherwise reads both in this box.
void check_tied_head(const SafetensorsFolder& weights, const ModelShape& shape, const Box& box);

/// Checks all of it.
void check_tied_head(const SafetensorsFolder& weights, const ModelShape& shape);

}  // namespace meshtrain

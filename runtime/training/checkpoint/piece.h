#pragma once

#include <string>
#include <vector>

#include "mesh/box.h"
#include "runtime/training/optimizer/shard_tensor.h"

namespace meshtrain {

/// A box of a global tensor of a checkpoint. Tensors are named as the parameter in a Hugging Face checkpoint, or that
/// and the name of the optimizer's state: "model.norm.weight", "model.norm.weight.exp_avg".
struct Piece {
  std::string tensor;
  std::vector<int64_t> shape;  ///< of the complete tensor
  Box box;
  at::Tensor values;  ///< [box.size]: a view of this rank's memory
};

/// Returns the name of a piece in a safetensors file and in messages: "model.norm.weight[0:64]".
std::string piece_name(const std::string& tensor, const Box& box);

/// Returns the shard_boxes() of `wanted`, a range of the shard, as pieces.
std::vector<Piece> pieces_of(const ShardTensor& numbers, Range wanted);

}  // namespace meshtrain

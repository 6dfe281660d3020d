#pragma once

#include <string>
#include <vector>

#include "mesh/box.h"
#include "runtime/optimizer/shard_tensor.h"

namespace meshtrain {

/// A box of a global tensor of a checkpoint. Tensors are named as the parameter in a Hugging Face checkpoint, or that
/// and what the optimizer keeps of it: "model.norm.weight", "model.norm.weight.exp_avg".
struct Piece {
  std::string tensor;
  std::vector<int64_t> shape;  ///< of the whole tensor
  Box box;
  at::Tensor values;  ///< [box.size]: a view of where they are on this rank
};

/// "model.norm.weight[0:64]": a piece in a safetensors file, and in messages.
std::string piece_name(const std::string& tensor, const Box& box);

/// The pieces that make up `wanted`, a range of the shard, as far as `numbers` has it: every element of a parameter in
/// it once, no padding. Shards cut anywhere, so a matrix has up to three.
std::vector<Piece> pieces_of(const ShardTensor& numbers, Range wanted);

}  // namespace meshtrain

#include "runtime/training/checkpoint/piece.h"

namespace meshtrain {

std::string piece_name(const std::string& tensor, const Box& box) {
  return tensor + describe(box);
}

std::vector<Piece> pieces_of(const ShardTensor& numbers, Range wanted) {
  std::vector<Piece> pieces;
  for (const ShardBox& each : shard_boxes(numbers, wanted)) {
    const std::string& name = each.parameter->name;
    pieces.push_back(
        {numbers.name.empty() ? name : name + "." + numbers.name, each.parameter->global_shape, each.box, each.values});
  }
  return pieces;
}

}  // namespace meshtrain

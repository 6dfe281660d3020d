#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/piece.h"

namespace meshtrain {

/// Finds the pieces of a checkpoint that hold what a rank asks for. Of the rank that has read the manifest.
class ManifestIndex {
 public:
  /// `manifest` outlives this.
  explicit ManifestIndex(const Manifest& manifest);

  /// The training state, and of each tensor of `wanted` that the checkpoint has its dtype, its shape and the stored
  /// pieces that have elements of the boxes asked for; none of them where it has another shape. `values` of `wanted`
  /// are not looked at. The time depends on the pieces found, not on how many there are.
  Manifest excerpt(const std::vector<Piece>& wanted) const;

 private:
  struct Tensor {
    const StoredTensor& stored;
    std::vector<uint32_t> order;  // of its pieces, by_row()
    int64_t longest = 0;          // of them along dim 0
  };

  const Manifest& manifest_;
  std::unordered_map<std::string, Tensor> tensors_;
};

/// `pieces` without their values, and an excerpt, in bytes for another rank of this job; and back. Throws
/// std::runtime_error for bytes that end too soon.
std::string packed(const std::vector<Piece>& pieces);
std::vector<Piece> unpack_pieces(const std::string& bytes);
std::string packed(const Manifest& excerpt);
Manifest unpack_excerpt(const std::string& bytes);

}  // namespace meshtrain

#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/training/checkpoint/manifest.h"
#include "runtime/training/checkpoint/piece.h"

namespace meshtrain {

/// An index of a checkpoint's pieces, which finds those that hold what a rank needs. It exists on the rank that has
/// read the manifest.
class ManifestIndex {
 public:
  /// `manifest` must outlive this.
  explicit ManifestIndex(const Manifest& manifest);

  /// Returns the training state and, of each tensor of `wanted` that the checkpoint has, its dtype, its shape and the
  /// stored pieces that overlap the wanted boxes; no pieces when it has another shape. `values` of `wanted` are not
  /// read. The time depends on the pieces found, not on how many the checkpoint has.
  Manifest excerpt(const std::vector<Piece>& wanted) const;

 private:
  struct Tensor {
    const StoredTensor& stored;
    std::vector<uint32_t> order;  // of its pieces, by_row()
    int64_t longest = 0;          // the longest piece along dim 0
  };

  const Manifest& manifest_;
  std::unordered_map<std::string, Tensor> tensors_;
};

/// Pack `pieces` without their values, or an excerpt, into bytes for another rank of this job, and unpack them. Throw
/// std::runtime_error for bytes that end too soon.
std::string packed(const std::vector<Piece>& pieces);
std::vector<Piece> unpack_pieces(const std::string& bytes);
std::string packed(const Manifest& excerpt);
Manifest unpack_excerpt(const std::string& bytes);

}  // namespace meshtrain

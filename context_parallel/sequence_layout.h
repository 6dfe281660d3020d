#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace meshtrain {

class KernelCallCache;  // kernel_calls.h

/// The positions of a sequence that each context-parallel rank holds, and the starts of its documents. A value type; no
/// function communicates. S is the length of the complete sequence, s = S / ranks its local part.
class SequenceLayout {
 public:
  enum class Kind {
    Contiguous,  ///< rank r holds [r s, (r+1) s)
    ZigZag,      ///< rank r holds chunks r and 2c-1-r of 2c equal chunks: equal causal work on every rank
  };

  /// The positions [start, start + size).
  struct Chunk {
    int64_t start;
    int64_t size;
    bool operator==(const Chunk&) const = default;
  };

  /// Throws InputError when `sequence_length` is not a multiple of the number of chunks of the kind (ranks, 2 ranks).
  /// One rank holds all positions, for any kind and length.
  SequenceLayout(Kind kind, int64_t sequence_length, int ranks, int rank);
  /// Returns the layout of one rank.
  static SequenceLayout unsharded(int64_t sequence_length);

  int64_t sequence_length() const { return sequence_length_; }
  int64_t local_length() const { return sequence_length_ / ranks_; }
  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  Kind kind() const { return kind_; }

  /// Returns the chunks of `rank`, positions ascending; their concatenation is its local order.
  std::vector<Chunk> chunks(int rank) const;
  /// Returns the global positions of the local tokens, in local order: int64 [s] on the CPU.
  at::Tensor positions() const;
  /// Returns the local part of a tensor with S elements along `dim`, in local order; a view when the part is one chunk.
  /// Throws std::invalid_argument for another extent than S.
  at::Tensor take(const at::Tensor& tensor, int64_t dim) const;

  /// Returns this layout with attention kept inside documents. `starts`: for each sequence of the batch the positions
  /// where a new document begins, ascending, in (0, S); position 0 always begins one. Throws std::invalid_argument for
  /// other values.
  SequenceLayout with_documents(std::vector<std::vector<int64_t>> starts) const;
  /// Returns the argument of with_documents(); empty: each sequence is one document.
  const std::vector<std::vector<int64_t>>& documents() const;
  /// Returns true when a sequence has more than one document.
  bool divided() const;
  /// Returns the layout of one rank that holds all S positions, with the same documents.
  SequenceLayout undistributed() const;
  /// Returns the kernel calls made so far for these documents, which copies of this layout share. Null without
  /// documents.
  KernelCallCache* kernel_calls() const;

 private:
  Kind kind_;
  int64_t sequence_length_;
  int ranks_;
  int rank_;
  struct Documents;
  std::shared_ptr<const Documents> documents_;  // null: each sequence is one document
};

}  // namespace meshtrain

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace meshtrain {

class AttentionPlans;  // attention_plan.h

/// Which token positions of a sequence each context-parallel rank holds, and where documents begin. A value; no
/// function communicates. S is the length of the whole sequence, s = S / ranks its local part.
class SequenceLayout {
 public:
  enum class Kind {
    Contiguous,  ///< rank r holds [r s, (r+1) s)
    ZigZag,      ///< of 2c equal chunks rank r holds r and 2c-1-r: equal causal work on every rank
  };

  /// Positions [start, start + size).
  struct Chunk {
    int64_t start;
    int64_t size;
    bool operator==(const Chunk&) const = default;
  };

  /// Throws InputError when `sequence_length` is not a multiple of the chunks that the kind cuts (ranks, 2 ranks).
  /// One rank holds everything, whatever the kind and length.
  SequenceLayout(Kind kind, int64_t sequence_length, int ranks, int rank);
  /// The layout of one rank.
  static SequenceLayout whole(int64_t sequence_length);

  int64_t sequence_length() const { return sequence_length_; }
  int64_t local_length() const { return sequence_length_ / ranks_; }
  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  Kind kind() const { return kind_; }

  /// What `rank` holds, positions ascending; its local order is their concatenation.
  std::vector<Chunk> chunks(int rank) const;
  /// int64 [s] on the CPU: global positions of the local tokens, in local order.
  at::Tensor positions() const;
  /// The local part of a tensor of S elements along `dim`, in local order; a view where the part is one chunk.
  /// Throws std::invalid_argument for another extent than S.
  at::Tensor take(const at::Tensor& tensor, int64_t dim) const;

  /// The same positions with attention kept inside documents. `starts`: for each sequence of the batch the positions
  /// at which a new document begins, ascending, in (0, S); position 0 always begins one. Throws std::invalid_argument
  /// for any others.
  SequenceLayout with_documents(std::vector<std::vector<int64_t>> starts) const;
  /// As given to with_documents; empty: each sequence is one document.
  const std::vector<std::vector<int64_t>>& documents() const;
  /// True when a sequence has more than one document.
  bool divided() const;
  /// The layout of one rank that holds all S positions, with the same documents.
  SequenceLayout undistributed() const;
  /// The plans made so far for these documents; copies of this layout share them. Null without documents.
  AttentionPlans* plans() const;

 private:
  Kind kind_;
  int64_t sequence_length_;
  int ranks_;
  int rank_;
  struct Documents;
  std::shared_ptr<const Documents> documents_;  // null: one document each
};

}  // namespace meshtrain

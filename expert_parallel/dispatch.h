#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "expert_parallel/expert_rows.h"
#include "mesh/box.h"
#include "mesh/group.h"

namespace meshtrain {

/// The exchange of rows with the ranks of ep that hold their experts. Rank i of ep holds the experts [i E/ep, (i + 1)
/// E/ep) of E. A rank receives every row that has one of its experts.
///
/// Rows travel in pieces, so that those of one piece travel while those of another are computed. A piece is a range of
/// each rank's experts. An expert's rows are therefore computed at once, with the bits that one piece would give.
struct Dispatch {
  struct Piece {
    Range experts;                  ///< among those of this rank
    Range rows;                     ///< among this rank's rows
    std::vector<int64_t> sent;      ///< rows of this rank that go to each rank
    std::vector<int64_t> received;  ///< rows that come from each rank
    at::Tensor order;               ///< [R'] int64: row r of the experts arrives as number order[r];
                                    ///< undefined: rows arrive in the order of experts
    GroupStarts starts;             ///< the rows of each expert of the piece among R'
  };

  Group ep;
  ExpertRows rows;  ///< this rank's rows, sorted by piece, then by expert
  std::vector<Piece> pieces;

  /// Returns the number of rows that this rank receives.
  int64_t num_received() const;
};

/// A Dispatch whose ranks are exchanging the numbers of their rows: one all-to-all of E numbers, which the host reads.
class PendingDispatch {
 public:
  /// Starts the exchange for choices [T, k] (sort_by_expert()). Every rank of `ep` must call it. Throws
  /// std::invalid_argument when ep does not divide the number of experts.
  PendingDispatch(const at::Tensor& choices, int64_t num_experts, const Group& ep);

  /// Waits for the numbers. Rows of an expert are ordered by sending rank, then by token. On the Meta device all ranks
  /// are assumed to send this rank's numbers; while a WorstRouting exists, as many rows as possible to this rank.
  Dispatch wait() const;

 private:
  Group ep_;
  ExpertRows rows_;
  at::Tensor sent_, arriving_;
  Work work_;
};

/// While it exists, dispatches on the Meta device in this thread assume that all ranks choose experts of this rank.
class WorstRouting {
 public:
  WorstRouting();
  ~WorstRouting();
  WorstRouting(const WorstRouting&) = delete;
  WorstRouting& operator=(const WorstRouting&) = delete;

 private:
  bool before_;
};

/// Rows on their way.
struct TravellingRows {
  at::Tensor rows;
  Work work;
};

// Every rank of ep must call these functions in the same order. Not differentiable. A row whose expert is on its own
// rank is copied. `purpose`: the purpose of the traffic.

/// Starts to send the rows of a piece, x [R, ...], to the ranks of their experts.
TravellingRows start_sending(const at::Tensor& x, const Dispatch& dispatch, const Dispatch::Piece& piece,
                             const char* purpose);

/// Waits for the rows of a piece. Returns those of this rank's experts [R', ...], sorted by expert.
at::Tensor arrived(const TravellingRows& rows, const Dispatch::Piece& piece);

/// Starts to send the rows of a piece y [R', ...] back, `into` [R, ...], in the order of x in start_sending().
Work start_returning(const at::Tensor& y, at::Tensor into, const Dispatch& dispatch, const Dispatch::Piece& piece,
                     const char* purpose);

}  // namespace meshtrain

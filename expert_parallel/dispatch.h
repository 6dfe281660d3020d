#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "expert_parallel/expert_rows.h"
#include "mesh/group.h"

namespace meshtrain {

/// The ways of rows to the ranks of ep that hold their experts, and back. Rank i of ep holds the experts
/// [i E/ep, (i + 1) E/ep) of E. Nothing is dropped: a rank receives as many rows as have chosen its experts.
struct Dispatch {
  Group ep;
  std::vector<int64_t> sent;      ///< rows of this rank that go to each rank
  std::vector<int64_t> received;  ///< rows that come from each rank
  at::Tensor order;               ///< [R'] int64: row r of the experts is number order[r] of those that arrive;
                                  ///< undefined: they arrive in the order of experts
  GroupStarts starts;             ///< the rows of each expert of this rank among R'

  int64_t num_rows() const { return starts.back(); }
};

/// Exchanges the numbers of rows: one all-to-all of E numbers, which the host reads. Rows of an expert are ordered by
/// the rank that they come from, then as there. Every rank of `ep` must call it. `rows`: of this rank's tokens. Throws
/// std::invalid_argument when ep does not divide the experts. On the Meta device all ranks send this rank's numbers.
Dispatch plan_dispatch(const ExpertRows& rows, const Group& ep);

// Every rank of ep must call these functions and their backwards, which have the bytes of the other's forward. A row
// that stays on its rank is copied. Differentiable once.

/// Sends the rows of x [R, ...], sorted by expert, to their experts: returns the rows of this rank's experts [R', ...],
/// sorted by expert. `purpose`: of the traffic.
at::Tensor send_to_experts(const at::Tensor& x, const Dispatch& dispatch, const char* purpose);

/// Sends the rows of y [R', ...] back: returns [R, ...], in the order of send_to_experts()'s argument.
at::Tensor return_from_experts(const at::Tensor& y, const Dispatch& dispatch, const char* purpose);

}  // namespace meshtrain

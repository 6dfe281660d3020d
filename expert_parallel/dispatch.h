#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "expert_parallel/expert_rows.h"
#include "mesh/group.h"

namespace meshtrain {

/// The exchange of rows with the ranks of ep that hold their experts. Rank i of ep holds the experts [i E/ep, (i + 1)
/// E/ep) of E. No row is dropped: a rank receives every row that chose one of its experts.
struct Dispatch {
  Group ep;
  std::vector<int64_t> sent;      ///< rows of this rank that go to each rank
  std::vector<int64_t> received;  ///< rows that come from each rank
  at::Tensor order;               ///< [R'] int64: row r of the experts arrives as number order[r];
                                  ///< undefined: rows arrive in the order of experts
  GroupStarts starts;             ///< the rows of each expert of this rank among R'

  int64_t num_rows() const { return starts.back(); }
};

/// Exchanges the numbers of rows in one all-to-all of E numbers, which the host reads. Rows of an expert are ordered by
/// sending rank, then as on that rank. Every rank of `ep` must call it. `rows`: the rows of this rank's tokens. Throws
/// std::invalid_argument when ep does not divide the number of experts. On the Meta device all ranks are assumed to
/// send this rank's numbers.
Dispatch plan_dispatch(const ExpertRows& rows, const Group& ep);

// Every rank of ep must call these functions and their backwards. The backward of each sends as many bytes as the
// forward of the other. A row whose expert is on its own rank is copied. Differentiable once.

/// Sends the rows of x [R, ...], sorted by expert, to the ranks of their experts. Returns the rows of this rank's
/// experts [R', ...], sorted by expert. `purpose`: the purpose of the traffic.
at::Tensor send_to_experts(const at::Tensor& x, const Dispatch& dispatch, const char* purpose);

/// Sends the rows of y [R', ...] back. Returns [R, ...], in the order of x in send_to_experts().
at::Tensor return_from_experts(const at::Tensor& y, const Dispatch& dispatch, const char* purpose);

}  // namespace meshtrain

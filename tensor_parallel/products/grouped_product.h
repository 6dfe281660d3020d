#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "mesh/device/repeated_calls.h"

namespace meshtrain {

/// The rows of each group in a matrix whose rows are sorted by group: group g has rows [starts[g], starts[g + 1]), so
/// there are E + 1 starts for E groups, the first is 0 and the last the number of rows.
using GroupStarts = std::vector<int64_t>;

/// Calls action(group, first row, number of rows) for each group.
template <class Action>
void for_groups(const GroupStarts& starts, const Action& action) {
  for (size_t group = 0; group + 1 < starts.size(); ++group) {
    action(static_cast<int64_t>(group), starts[group], starts[group + 1] - starts[group]);
  }
}

/// Does what for_groups() does, for actions on tensors like `like` that depend only on the number of rows: on the Meta
/// device one group computes for all that have as many (RepeatedCalls).
template <class Action>
void for_alike_groups(const at::Tensor& like, const GroupStarts& starts, const Action& action) {
  if (!like.is_meta()) return for_groups(starts, action);
  struct Alike {
    int64_t group, first, times;
  };
  std::map<int64_t, Alike> alike;  // by the number of rows
  for_groups(starts, [&](int64_t group, int64_t first, int64_t count) {
    ++alike.try_emplace(count, Alike{group, first, 0}).first->second.times;
  });
  for (const auto& [count, groups] : alike) {
    const RepeatedCalls repeated(groups.times);
    action(groups.group, groups.first, count);
  }
}

/// Returns [R, n]: for each group g the product x_g w_g^T of its rows x_g of x [R, k] and its matrix w_g of w [E, n, k]
/// of the same dtype. w may have any strides: transposed weights, [E, k, n] as [E, n, k], give the gradient of x. Not
/// differentiable.
///
/// Each group is a product() of its own (matrix_product.h), written in place. On a GPU it is a product of LibTorch's
/// for each group that has rows.
at::Tensor grouped_product(const at::Tensor& x, const at::Tensor& w, const GroupStarts& starts);

/// Adds a_g^T b_g to into[g] for each group g, for a [R, m] and b [R, n] of one dtype and into [E, m, n], perhaps of
/// another, as add_product() does. `unwritten`: into[g] = a_g^T b_g, whatever `into` holds; zeros for a group without
/// rows. Not differentiable.
void add_grouped_product(const at::Tensor& into, const at::Tensor& a, const at::Tensor& b, const GroupStarts& starts,
                         bool unwritten = false);

}  // namespace meshtrain

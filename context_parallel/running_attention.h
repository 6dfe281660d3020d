#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include "context_parallel/attention_kernels.h"

namespace meshtrain {

/// Attention of some queries while their keys arrive block by block: outputs are merged by their log-sum-exp, in its
/// dtype (fp32 for halves).
///
/// "No key yet" is the absence of a partial result, never a log-sum-exp: the kernels give 0, not minus infinity, to a
/// query without keys.
class RunningAttention {
 public:
  /// A block whose first query is `query`; its tensors may be overwritten. Blocks with the same first query must have
  /// the same queries: std::logic_error otherwise.
  void add(int64_t query, Attended block);
  /// Writes all queries, in order, into out [B, H, s, D] and lse [B, H, s]. Throws std::logic_error when a query of
  /// the s has had no key.
  void finish(const at::Tensor& out, const at::Tensor& lse) const;

 private:
  std::map<int64_t, Attended> partials_;  // by first query
};

}  // namespace meshtrain

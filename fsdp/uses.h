#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "fsdp/unit.h"

namespace meshtrain {

/// The storages of the units' parameters and gradients. A view of a parameter, such as the transposed weight that
/// autograd keeps for the backward, has the parameter's storage, so the unit of an operand is known.
class UnitStorages {
 public:
  explicit UnitStorages(const std::vector<Unit>& units);

  /// Returns the unit of `tensor`, or -1 when it belongs to none.
  int64_t unit_of(const at::Tensor& tensor) const;

 private:
  std::unordered_map<const c10::StorageImpl*, int64_t> units_;
};

/// A watch over the operators of this thread, and of the threads in which autograd runs this thread's backward. Calls
/// `before_use` before each operator that takes a tensor of a unit. An error of `before_use` is thrown in place of the
/// operator. Operators inside another operator, or inside `before_use`, are not watched. One thread of a process
/// watches at a time. A watched operator costs about a microsecond on the host (docs/benchmarks.md).
class WatchedUses {
 public:
  using BeforeUse = std::function<void(size_t unit)>;

  /// `storages` must outlive this. Watches may be nested; each sees every operator.
  WatchedUses(const UnitStorages& storages, BeforeUse before_use);
  ~WatchedUses();
  WatchedUses(const WatchedUses&) = delete;
  WatchedUses& operator=(const WatchedUses&) = delete;

  /// Calls `before_use` if `tensor` belongs to a unit; then does the same for the enclosing watches.
  void visit(const at::Tensor& tensor) const;

 private:
  const UnitStorages& storages_;
  BeforeUse before_use_;
  const WatchedUses* enclosing_;
  c10::impl::IncludeDispatchKeyGuard watch_;
};

}  // namespace meshtrain

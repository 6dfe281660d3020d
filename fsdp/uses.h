#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fsdp/unit.h"

namespace meshtrain {

/// An operand's unit.
struct UnitUse {
  size_t unit;
  bool is_gradient;         ///< memory of the unit's gradients; false: of its parameters
  bool is_written = false;  ///< the operator writes to it

  bool operator==(const UnitUse&) const = default;
};

/// The storages of the units' parameters and gradients. A view of a parameter, such as the transposed weight that
/// autograd keeps for the backward, has the parameter's storage, so the unit of an operand is known.
class UnitStorages {
 public:
  explicit UnitStorages(const std::vector<Unit>& units);

  /// Returns the unit of `tensor`; none when it belongs to no unit.
  std::optional<UnitUse> use_of(const at::Tensor& tensor) const;

 private:
  std::unordered_map<const c10::StorageImpl*, UnitUse> units_;
};

/// The dispatch key by which operators are watched. No tensor has it and no library registers it; it comes before that
/// of autograd.
inline constexpr c10::DispatchKey kWatchKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// A watch over the operators of this thread, and of the threads in which autograd runs this thread's backward. Calls
/// `before_use` before each operator that takes tensors of units. An error of `before_use` is thrown in place of the
/// operator. Operators inside another operator, or inside `before_use`, are not watched. One thread of a process
/// watches at a time. A watch costs a fraction of a microsecond an operator (docs/benchmarks.md).
class WatchedUses {
 public:
  /// `called`: the operator's name. `uses`: those of its operands, each once, at least one.
  using BeforeUse = std::function<void(const std::string& called, const std::vector<UnitUse>& uses)>;

  /// `storages` must outlive this. Watches may overlap; each sees every operator.
  WatchedUses(const UnitStorages& storages, BeforeUse before_use);
  ~WatchedUses();
  WatchedUses(const WatchedUses&) = delete;
  WatchedUses& operator=(const WatchedUses&) = delete;

  /// An operand; true when the operator writes to it.
  using Operand = std::pair<at::Tensor, bool>;

  /// Calls `before_use` if one of `operands` belongs to a unit; then does the same for the watches that began earlier.
  void visit(const std::string& called, const std::vector<Operand>& operands) const;

 private:
  const UnitStorages& storages_;
  BeforeUse before_use_;
  WatchedUses* earlier_;
};

/// While it exists, no watch sees the operators of this thread.
class UnwatchedUses {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{kWatchKey};
};

}  // namespace meshtrain

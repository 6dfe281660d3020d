#include "fsdp/uses.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace meshtrain {
namespace {

// Not one a thread: the backward of tensors on a GPU runs in a thread of autograd.
std::atomic<WatchedUses*> last_watch = nullptr;

/// Appends the tensors of the argument `value`. `is_written`: the operator writes to them.
void add_tensors(const c10::IValue& value, bool is_written, std::vector<WatchedUses::Operand>& operands) {
  if (value.isTensor()) {
    operands.emplace_back(value.toTensor(), is_written);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) operands.emplace_back(tensor, is_written);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor) operands.emplace_back(*tensor, is_written);
    }
  }
}

void before_operator(const c10::OperatorHandle& called, torch::jit::Stack* stack) {
  const UnwatchedUses inside;
  if (const WatchedUses* const watch = last_watch) {
    std::vector<WatchedUses::Operand> operands;
    const std::vector<c10::Argument>& arguments = called.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::AliasInfo* const alias = arguments[i].alias_info();
      add_tensors((*stack)[stack->size() - arguments.size() + i], alias != nullptr && alias->isWrite(), operands);
    }
    watch->visit(called.schema().name(), operands);
  }
  called.callBoxed(stack);
}

}  // namespace

UnitStorages::UnitStorages(const std::vector<Unit>& units) {
  const auto add = [&](const at::Tensor& tensor, const UnitUse& use) {
    if (tensor.defined()) units_.emplace(tensor.storage().unsafeGetStorageImpl(), use);
  };
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (const FlatBuffer& buffer : units[unit].buffers()) {
      add(buffer.values(), {unit, false});
      add(buffer.gradients(), {unit, true});
    }
  }
}

std::optional<UnitUse> UnitStorages::use_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return std::nullopt;
  const auto found = units_.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  return found == units_.end() ? std::nullopt : std::optional(found->second);
}

WatchedUses::WatchedUses(const UnitStorages& storages, BeforeUse before_use)
    : storages_(storages), before_use_(std::move(before_use)), earlier_(last_watch) {
  last_watch = this;
  c10::impl::tls_set_dispatch_key_included(kWatchKey, true);
}

// A watch may end before one that began later, as those of two Fsdp do in a backward.
WatchedUses::~WatchedUses() {
  if (last_watch == this) {
    last_watch = earlier_;
  } else {
    auto* later = last_watch.load();
    while (later->earlier_ != this) later = later->earlier_;
    later->earlier_ = earlier_;
  }
  c10::impl::tls_set_dispatch_key_included(kWatchKey, last_watch != nullptr);
}

void WatchedUses::visit(const std::string& called, const std::vector<Operand>& operands) const {
  std::vector<UnitUse> uses;
  for (const auto& [tensor, is_written] : operands) {
    std::optional<UnitUse> use = storages_.use_of(tensor);
    if (use) use->is_written = is_written;
    if (use && std::ranges::find(uses, *use) == uses.end()) uses.push_back(*use);
  }
  if (!uses.empty()) before_use_(called, uses);
  if (earlier_ != nullptr) earlier_->visit(called, operands);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&before_operator>());
}

}  // namespace meshtrain

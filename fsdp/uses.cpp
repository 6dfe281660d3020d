#include "fsdp/uses.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <atomic>
#include <utility>

namespace meshtrain {
namespace {

// A dispatch key ahead of autograd's that no tensor has and no library registers. A thread that includes the key sends
// every operator through before_operator().
constexpr c10::DispatchKey kWatch = c10::DispatchKey::TESTING_ONLY_GenericMode;

// One for the process, not one for each thread: autograd runs the backward of GPU tensors in a thread of its own.
std::atomic<const WatchedUses*> innermost = nullptr;

void visit_tensors(const c10::IValue& value, const WatchedUses& watch) {
  if (value.isTensor()) {
    watch.visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) watch.visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor) watch.visit(*tensor);
    }
  }
}

void before_operator(const c10::OperatorHandle& called, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard inside(kWatch);
  if (const WatchedUses* const watch = innermost) {
    const size_t num_arguments = called.schema().arguments().size();
    for (size_t i = stack->size() - num_arguments; i < stack->size(); ++i) visit_tensors((*stack)[i], *watch);
  }
  called.callBoxed(stack);
}

}  // namespace

UnitStorages::UnitStorages(const std::vector<Unit>& units) {
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (const FlatBuffer& buffer : units[unit].buffers()) {
      for (const at::Tensor& tensor : {buffer.values(), buffer.gradients()}) {
        if (tensor.defined()) units_[tensor.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(unit);
      }
    }
  }
}

int64_t UnitStorages::unit_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return -1;
  const auto found = units_.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  return found == units_.end() ? -1 : found->second;
}

WatchedUses::WatchedUses(const UnitStorages& storages, BeforeUse before_use)
    : storages_(storages), before_use_(std::move(before_use)), enclosing_(innermost), watch_(kWatch) {
  innermost = this;
}

WatchedUses::~WatchedUses() {
  innermost = enclosing_;
}

void WatchedUses::visit(const at::Tensor& tensor) const {
  if (const int64_t unit = storages_.unit_of(tensor); unit >= 0) before_use_(static_cast<size_t>(unit));
  if (enclosing_ != nullptr) enclosing_->visit(tensor);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&before_operator>());
}

}  // namespace meshtrain

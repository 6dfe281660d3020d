#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <utility>

namespace meshtrain {

/// An operator of the dispatcher's library meshtrain::, as its callers see it. The device of its arguments decides
/// which of its siblings computes: the file that defines it has those for the CPU and the Meta device; the plug-in has
/// that for CUDA. It records nothing for autograd: its caller must be an autograd function.
///
///   static const Operator<at::Tensor(const at::Tensor&, int64_t)> forward("meshtrain::glu");
template <class Signature>
class Operator;

template <class Result, class... Arguments>
class Operator<Result(Arguments...)> {
 public:
  /// Throws c10::Error when no operator has this name, or it has other types.
  explicit Operator(const char* name)
      : handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Result(Arguments...)>()) {}

  Result operator()(Arguments... arguments) const {
    const at::AutoDispatchBelowADInplaceOrView below;
    return handle_.call(std::forward<Arguments>(arguments)...);
  }

 private:
  c10::TypedOperatorHandle<Result(Arguments...)> handle_;
};

/// Defines the operator of `schema`, "glu(Tensor gate_up, int activation) -> Tensor", in a TORCH_LIBRARY_FRAGMENT.
/// `function` is its sibling for the CPU and for the Meta device: it is made of LibTorch's own operators, which both
/// have.
template <class Function>
void define(torch::Library& library, const std::string& schema, Function* function) {
  library.def(schema.c_str());
  const std::string name = schema.substr(0, schema.find('('));
  for (const c10::DispatchKey device : {c10::DispatchKey::CPU, c10::DispatchKey::Meta}) {
    library.impl(name.c_str(), torch::dispatch(device, function));
  }
}

}  // namespace meshtrain

#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "mesh/device/meta_device.h"

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

template <auto* Host, auto* Gpu>
struct MetaSibling;

/// The sibling for the Meta device: that of the device that it stands for.
template <class Result, class... Arguments, Result (*Host)(Arguments...), Result (*Gpu)(Arguments...)>
struct MetaSibling<Host, Gpu> {
  static Result call(Arguments... arguments) {
    const bool on_host = stood_for(c10::Device(c10::kMeta)) == c10::kCPU;
    return (on_host ? Host : Gpu)(std::forward<Arguments>(arguments)...);
  }
};

/// Defines the operator of `schema`, "glu(Tensor gate_up, int activation) -> Tensor", in a TORCH_LIBRARY_FRAGMENT.
/// `Host` is its sibling for the CPU. It uses LibTorch's own operators, which the Meta device has too, or loops that
/// only allocate for a tensor of the Meta device. `Gpu` allocates what the sibling for CUDA does, results included,
/// except a kernel's own partial sums of a few MiB.
template <auto* Host, auto* Gpu>
void define(torch::Library& library, const std::string& schema) {
  library.def(schema.c_str());
  const std::string name = schema.substr(0, schema.find('('));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, Host));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, &MetaSibling<Host, Gpu>::call));
}

}  // namespace meshtrain

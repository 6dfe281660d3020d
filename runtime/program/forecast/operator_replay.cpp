#include "runtime/program/forecast/operator_replay.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "mesh/device/aten.h"
#include "tensor_parallel/products/matrix_product.h"

namespace meshtrain {
namespace {

// An operator finds, as in a step, its inputs and the memory of its results outside of the processor's caches: a replay
// goes through so many bytes before it comes back to the same tensors.
constexpr double kFootprint = 64 << 20, kMostSets = 32;
constexpr double kSetsOfComputing = 4;  // of products and attention, whose time depends little on memory

/// Returns a tensor of the CPU like `meta`. Floating-point elements are 1/64: sums of them neither overflow nor vanish.
at::Tensor made_like(const at::Tensor& meta) {
  int64_t last = 0;
  for (int64_t dim = 0; dim < meta.dim(); ++dim) {
    if (meta.size(dim) == 0) return at::empty_strided(meta.sizes(), meta.strides(), meta.dtype());
    last += (meta.size(dim) - 1) * meta.stride(dim);
  }
  at::Tensor storage = at::zeros({last + 1}, at::TensorOptions(meta.dtype()));
  if (at::isFloatingType(meta.scalar_type())) storage.fill_(1.0 / 64);
  return storage.as_strided(meta.sizes(), meta.strides());
}

std::vector<c10::IValue> made_like(const std::vector<c10::IValue>& inputs) {
  const c10::ArrayRef<const c10::IValue> given(inputs.data(), inputs.size());
  std::vector<c10::IValue> made = with_tensors(given, [](const at::Tensor& meta) { return made_like(meta); });
  for (c10::IValue& input : made) {
    if (input.isDevice()) input = c10::Device(c10::kCPU);
  }
  return made;
}

/// Calls an operator and returns its results.
using Call = std::function<std::vector<c10::IValue>(std::vector<c10::IValue> inputs)>;

Call call_of(const OperatorSignature& signature) {
  if (signature.name.name == "aten::mm" && signature.name.overload_name.empty()) {
    // A dry run multiplies by aten::mm what product() gives to the faster library.
    return [](std::vector<c10::IValue> inputs) {
      return std::vector<c10::IValue>{product(inputs[0].toTensor(), inputs[1].toTensor().t())};
    };
  }
  const c10::OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(signature.name.name.c_str(), signature.name.overload_name.c_str());
  return [handle](std::vector<c10::IValue> stack) {
    const at::AutoDispatchBelowADInplaceOrView below;
    handle.callBoxed(&stack);
    return stack;
  };
}

}  // namespace

Replay make_replay(const OperatorSignature& signature, const OperatorCall& operator_call) {
  const double bytes = std::max(operator_call.bytes, 1.0);
  const double most = operator_call.kind == OperatorCall::Kind::Elementwise ? kMostSets : kSetsOfComputing;
  const auto num_sets = static_cast<size_t>(std::clamp(kFootprint / bytes, 1.0, most));
  auto sets = std::make_shared<std::vector<std::vector<c10::IValue>>>();
  for (size_t i = 0; i < num_sets; ++i) sets->push_back(made_like(signature.inputs));
  auto results = std::make_shared<std::vector<std::vector<c10::IValue>>>(num_sets);
  auto run = [call = call_of(signature), sets, results, next = size_t{0}]() mutable {
    (*results)[next].clear();
    (*results)[next] = call((*sets)[next]);
    next = (next + 1) % sets->size();
  };
  return {run, static_cast<int>(num_sets)};
}

}  // namespace meshtrain

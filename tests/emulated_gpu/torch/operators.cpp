// LibTorch's operators on the emulated GPU: those of the CPU, on the same memory, in the order of the current stream.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <array>
#include <cstring>
#include <string_view>

#include "mesh/device/aten.h"
#include "tests/emulated_gpu/cuda/streams.h"
#include "tests/emulated_gpu/torch/host_alias.h"

namespace meshtrain::emulated {
namespace {

using c10::IValue;
using torch::jit::Stack;

// Operators whose results the host needs at once: CUDA refuses them in a capture.
constexpr std::array<std::string_view, 5> kHostWaits = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero",
                                                        "aten::masked_select", "aten::_unique2"};
// Operators that take CPU indices with a GPU tensor.
constexpr std::array<std::string_view, 2> kTakeHostTensors = {"aten::index", "aten::_index_put_impl_"};

template <size_t kSize>
bool is_among(const std::array<std::string_view, kSize>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

/// The arguments for the CPU's operator.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, const Stack& given) : op_(op) {
    for (const IValue& value : given) stack_.push_back(of_host(value));
  }

  const Stack& stack() const { return stack_; }
  HostAliases& aliases() { return aliases_; }
  /// Returns true when an argument is host memory, which may change after the operator is issued.
  bool has_host_memory() const { return has_host_memory_; }

 private:
  IValue of_host(const IValue& value) {
    if (value.isTensor()) return of_host(value.toTensor());
    if (value.isTensorList()) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(of_host(tensor));
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        tensors.push_back(tensor ? std::optional(of_host(*tensor)) : std::nullopt);
      }
      return tensors;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
    return value;
  }
  at::Tensor of_host(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (tensor.is_cuda()) return aliases_.of(tensor);
    TORCH_CHECK(tensor.dim() == 0 || is_among(kTakeHostTensors, op_.operator_name().name), op_.operator_name(),
                ": expected all tensors to be on the same device, but found one on ", tensor.device(),
                " beside those of a GPU");
    has_host_memory_ |= !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return tensor;
  }

  const c10::OperatorHandle& op_;
  HostAliases aliases_;
  Stack stack_;
  bool has_host_memory_ = false;
};

/// A result on the CPU and its memory on the GPU.
struct Result {
  at::Tensor host;
  void* gpu;
};

/// Returns an operator's results as tensors of the GPU; adds those whose values must be copied to `moved`.
IValue on_gpu(const IValue& value, HostAliases& aliases, std::vector<Result>& moved) {
  const auto one = [&](const at::Tensor& host) {
    if (!host.defined()) return host;
    bool is_new = false;
    const at::Tensor gpu = aliases.original(host, &is_new);
    if (is_new) moved.push_back({host, gpu.storage().mutable_data()});
    return gpu;
  };
  if (value.isTensor()) return one(value.toTensor());
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(one(tensor));
    return tensors;
  }
  return value;
}

void copy_values(const std::vector<Result>& results) {
  for (const Result& result : results) {
    const c10::Storage& storage = result.host.storage();
    if (storage.nbytes() > 0) std::memcpy(result.gpu, storage.data(), storage.nbytes());
  }
}

/// Returns true for operators that draw random numbers; these come from the CPU's generator, which others use too.
bool draws(const c10::FunctionSchema& schema) {
  return schema.argumentIndexWithName("generator").has_value();
}

bool has_room_to_grow(const c10::FunctionSchema& schema, const Stack& given) {
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite() || !given[i].isTensor()) continue;
    if (given[i].toTensor().numel() == 0) return true;
  }
  return false;
}

/// Returns the arguments that the schema returns, as they were given.
Stack written(const c10::FunctionSchema& schema, const Stack& given) {
  Stack results;
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) results.push_back(given[i]);
  }
  results.resize(schema.returns().size());
  return results;
}

/// Calls the CPU's operator on a thread of the device. Autograd has recorded the caller's operator already.
Stack call_on_host(const c10::OperatorHandle& op, Stack arguments) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.callBoxed(&arguments);
  return arguments;
}

void compute(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const Stack given = torch::jit::pop(*stack, schema.arguments().size());
  Arguments arguments(op, given);
  HostAliases& aliases = arguments.aliases();
  const cudaStream_t stream = current_stream();
  const bool captured = is_captured(stream);
  TORCH_CHECK(!captured || !is_among(kHostWaits, schema.name()), schema.name(),
              ": operation not permitted when stream is capturing");

  const bool waits = !captured && (arguments.has_host_memory() || draws(schema));
  if (schema.is_mutable() && !waits && !has_room_to_grow(schema, given)) {
    launch(stream, [op, host = arguments.stack()] { call_on_host(op, host); });
    for (IValue& value : written(schema, given)) stack->push_back(std::move(value));
    return;
  }

  Stack results;
  const auto call = [&] { results = call_on_host(op, arguments.stack()); };
  // During a capture the call gives only the shapes of the results; a launch of the graph computes the values.
  captured ? run_beside_streams(call) : run(stream, call);
  std::vector<Result> moved;
  for (const auto& [gpu, host] : aliases.grown()) moved.push_back({host, gpu.storage().mutable_data()});
  for (IValue& value : results) stack->push_back(on_gpu(value, aliases, moved));
  if (moved.empty()) return;
  if (!captured) {
    launch(stream, [moved] { copy_values(moved); });
    return;
  }
  std::vector<void*> targets;
  for (const Result& result : moved) targets.push_back(result.gpu);
  run(stream, [op, host = arguments.stack(), targets] {
    size_t next = 0;
    for (const IValue& value : call_on_host(op, host)) {
      std::vector<at::Tensor> tensors;
      if (value.isTensor()) tensors = {value.toTensor()};
      if (value.isTensorList()) tensors = value.toTensorVector();
      for (const at::Tensor& tensor : tensors) {
        if (tensor.defined() && next < targets.size()) copy_values({{tensor, targets[next++]}});
      }
    }
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}

}  // namespace meshtrain::emulated

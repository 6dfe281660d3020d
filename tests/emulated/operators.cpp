#include "tests/emulated/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mesh/device/aten.h"
#include "tests/emulated/machine.h"

namespace meshtrain::emulated {
namespace {

using torch::jit::Stack;

constexpr std::string_view kLibrary = "meshtrain";
constexpr c10::DispatchKey kMode = c10::DispatchKey::TESTING_ONLY_GenericWrapper;  // before every device

constexpr std::pair<Order, const char*> kOrders[] = {{Order::Forward, "forward"},
#ifndef __SANITIZE_ADDRESS__  // slow, and checks memory, not orders
                                                     {Order::Backward, "backward"},
#endif
                                                     {Order::Shuffled, "shuffled"}};

std::set<std::string> waiting;  // replaced operators not called yet

/// A copy of the bytes behind tensors, to compare and to restore.
class Memory {
 public:
  void add(const at::Tensor& tensor) {
    for (const Piece& piece : pieces_) {
      if (piece.storage.is_alias_of(tensor.storage())) return;
    }
    const at::Storage storage = tensor.storage();
    const auto size = static_cast<int64_t>(storage.nbytes());
    at::Tensor bytes = at::empty({0}, at::kByte).set_(storage, 0, {size}, {1});
    pieces_.push_back({storage, bytes, bytes.clone()});
  }
  void put_back() const {
    for (const Piece& piece : pieces_) at::Tensor(piece.bytes).copy_(piece.before);
  }
  /// Returns true when only `mutable_tensors` differ.
  bool is_kept(const std::vector<at::Tensor>& mutable_tensors) const {
    for (const Piece& piece : pieces_) {
      at::Tensor expected = piece.before.clone();
      for (const at::Tensor& tensor : mutable_tensors) {
        if (!piece.storage.is_alias_of(tensor.storage())) continue;
        at::empty({0}, tensor.options())
            .set_(expected.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides())
            .copy_(tensor);
      }
      if (!at::equal(piece.bytes, expected)) return false;
    }
    return true;
  }

 private:
  struct Piece {
    at::Storage storage;
    at::Tensor bytes, before;
  };
  std::vector<Piece> pieces_;
};

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.contiguous().view({-1}).view(at::kByte);
}

/// Returns the tensors of values, without undefined ones.
std::vector<at::Tensor> tensors_in(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
  }
  return tensors;
}

std::vector<at::Tensor> mutable_tensors(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() && arguments[i].isTensor()) tensors.push_back(arguments[i].toTensor());
  }
  return tensors;
}

Stack called(const c10::OperatorHandle& op, c10::DispatchKey device, Stack stack) {
  op.redispatchBoxed(c10::DispatchKeySet(device), &stack);
  return stack;
}

void check_against_meta(const c10::OperatorHandle& op, Stack arguments, const Stack& results) {
  for (c10::IValue& value : arguments) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor tensor = value.toTensor();
    value = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  }
  const Stack expected = called(op, c10::DispatchKey::Meta, std::move(arguments));
  TORCH_CHECK(expected.size() == results.size(), op.schema(), ": ", results.size(), " results");
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor seen = results[i].toTensor(), wanted = expected[i].toTensor();
    TORCH_CHECK(seen.defined() == wanted.defined(), op.schema(), ": result ", i, " is there: ", seen.defined());
    if (!seen.defined()) continue;
    TORCH_CHECK(seen.sizes() == wanted.sizes() && seen.strides() == wanted.strides() && seen.dtype() == wanted.dtype(),
                op.schema(), ": result ", i, " is ", seen.dtype(), " ", seen.sizes(), " of strides ", seen.strides(),
                ", the Meta device's ", wanted.dtype(), " ", wanted.sizes(), " of strides ", wanted.strides());
  }
}

void give(Stack& stack, const Stack& results) {
  stack.insert(stack.end(), results.begin(), results.end());
}

void compute(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kMode);
  const auto& schema = op.schema();
  waiting.erase(schema.name());
  const Stack arguments = torch::jit::pop(*stack, schema.arguments().size());
  const std::vector<at::Tensor> tensors = tensors_in(arguments);
  if (tensors.front().scalar_type() == at::kDouble) {
    give(*stack, called(op, c10::DispatchKey::CPU, arguments));
    return;
  }
  Memory memory;
  for (const at::Tensor& tensor : tensors) memory.add(tensor);
  const std::vector<at::Tensor> written = mutable_tensors(schema, arguments);

  Stack results;
  std::vector<at::Tensor> once;
  for (const auto& [order, name] : kOrders) {
    memory.put_back();
    set_order(order, 1 + at::randint(1 << 30, {1}, at::kLong).item<int64_t>());
    results = called(op, c10::DispatchKey::CUDA, arguments);
    TORCH_CHECK(memory.is_kept(written), schema, ": writes to memory that it may only read, or to none of its tensors");
    std::vector<at::Tensor> bits;
    for (const std::vector<at::Tensor>& all : {tensors_in(results), written}) {
      for (const at::Tensor& tensor : all) bits.push_back(bytes_of(tensor).clone());
    }
    if (once.empty()) once = bits;
    TORCH_CHECK(once.size() == bits.size(), schema, ": other results when threads run ", name);
    for (size_t i = 0; i < bits.size(); ++i) {
      TORCH_CHECK(at::equal(once[i], bits[i]), schema, ": tensor ", i, " of those it gives back and writes to is ",
                  "another when threads run ", name, ", not forward: a barrier is missing");
    }
  }
  check_against_meta(op, arguments, results);
  give(*stack, results);
}

}  // namespace

void replace_cuda() {
  static std::vector<std::unique_ptr<torch::Library>> libraries;
  // All other operators are not intercepted.
  libraries.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "_", kMode, __FILE__, __LINE__));
  libraries.back()->fallback(torch::CppFunction::makeFallthrough());
  libraries.push_back(
      std::make_unique<torch::Library>(torch::Library::IMPL, std::string(kLibrary), kMode, __FILE__, __LINE__));
  for (const c10::OperatorName& name :
       c10::Dispatcher::singleton().getAllOpNamesForDispatchKey(c10::DispatchKey::CUDA)) {
    const std::optional<std::string_view> space = name.getNamespace();
    if (!space || *space != kLibrary) continue;
    waiting.insert(name.name);
    libraries.back()->impl(name.name.c_str(), torch::CppFunction::makeFromBoxedFunction<&compute>());
  }
  c10::impl::tls_set_dispatch_key_included(kMode, true);
}

std::vector<std::string> not_called() {
  return {waiting.begin(), waiting.end()};
}

}  // namespace meshtrain::emulated

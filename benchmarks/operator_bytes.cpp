#include "operator_bytes.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <memory>
#include <optional>
#include <string>

namespace meshtrain {
namespace {

thread_local OperatorBytes counted;
thread_local int depth = 0;

int64_t bytes_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? tensor.numel() * static_cast<int64_t>(tensor.element_size()) : 0;
  }
  int64_t bytes = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) bytes += bytes_of(tensor);
  }
  return bytes;
}

/// Returns whether a written tensor is not read before.
bool overwrites(const std::string& name) {
  return name == "aten::copy_" || name == "aten::zero_" || name == "aten::fill_";
}

/// Returns whether the kernel for CUDA leaves alone what the schema, for the CPU's sake, calls written.
bool only_reads(const std::string& name) {
  return name == "meshtrain::cross_entropy_statistics";
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();  // none: autograd's own
  if (!schema || depth++ > 0) return nullptr;
  const std::string& name = schema->name();
  bool view = false;
  for (const c10::Argument& result : schema->returns()) {
    view = view || (result.alias_info() != nullptr && !result.alias_info()->isWrite());
  }
  if (view) return nullptr;
  for (size_t i = 0; i < function.inputs().size() && i < schema->arguments().size(); ++i) {
    const c10::Argument& argument = schema->arguments()[i];
    const int64_t bytes = bytes_of(function.inputs()[i]);
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite() && !only_reads(name);
    if (written) counted.written += bytes;
    if (!argument.is_out() && !(written && overwrites(name))) counted.read += bytes;
  }
  return nullptr;
}

void end(const at::RecordFunction& function, at::ObserverContext*) {
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  if (!schema || --depth > 0 || schema->name() == "aten::empty" || schema->name() == "aten::empty_like") return;
  for (size_t i = 0; i < function.outputs().size() && i < schema->returns().size(); ++i) {
    if (schema->returns()[i].alias_info() == nullptr) counted.written += bytes_of(function.outputs()[i]);
  }
}

}  // namespace

CountedOperators::CountedOperators()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                             .scopes({at::RecordScope::FUNCTION})
                                             .needsInputs(true)
                                             .needsOutputs(true))) {
  counted = {};
  depth = 0;
}

CountedOperators::~CountedOperators() {
  at::removeCallback(handle_);
}

const OperatorBytes& CountedOperators::bytes() const {
  return counted;
}

}  // namespace meshtrain

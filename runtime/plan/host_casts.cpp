#include "runtime/plan/host_casts.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "mesh/host_scratch.h"

namespace meshtrain {
namespace {

/// The copies of an operator, which end with it.
struct Copies final : at::ObserverContext {
  std::vector<at::Tensor> tensors;
};

/// Returns true for operators on two tensors whose kernels for the CPU compute in one dtype.
bool computes_in_one_dtype(std::string_view name) {
  static const std::set<std::string_view> names = {"aten::add", "aten::add_", "aten::sub", "aten::sub_",
                                                   "aten::mul", "aten::mul_", "aten::div", "aten::div_"};
  return names.contains(name);
}

std::unique_ptr<at::ObserverContext> copy_operands(const at::RecordFunction& function) {
  if (!computes_in_one_dtype(function.name())) return nullptr;
  std::vector<at::Tensor> operands;
  for (const c10::IValue& input : function.inputs()) {
    if (input.isTensor() && input.toTensor().dim() > 0) operands.push_back(input.toTensor());
  }
  if (operands.size() != 2 || operands[0].scalar_type() == operands[1].scalar_type()) return nullptr;
  if (!has_host_scratch(operands[0])) return nullptr;
  const at::ScalarType dtype = at::result_type(operands[0], operands[1]);
  auto copies = std::make_unique<Copies>();
  for (const at::Tensor& operand : operands) {
    if (operand.scalar_type() != dtype)
      copies->tensors.push_back(at::empty_like(operand, operand.options().dtype(dtype)));
  }
  return copies;
}

}  // namespace

HostCasts::HostCasts()
    : callback_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&copy_operands).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}

HostCasts::~HostCasts() {
  at::removeCallback(callback_);
}

}  // namespace meshtrain

#include "runtime/program/forecast/host_copies.h"

#include <ATen/record_function.h>

#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/host_scratch.h"

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

/// Returns the operands of another dtype than the computation's, in that dtype; computed in place, the first is such a
/// result too: aten/src/ATen/TensorIterator.cpp, compute_types.
std::vector<at::Tensor> casts(std::vector<at::Tensor> operands, bool in_place) {
  std::vector<at::Tensor> copies;
  const at::ScalarType dtype = at::result_type(operands[0], operands[1]);
  if (in_place) operands.push_back(operands[0]);
  for (const at::Tensor& operand : operands) {
    if (operand.scalar_type() != dtype) copies.push_back(at::empty_like(operand, operand.options().dtype(dtype)));
  }
  return copies;
}

/// Returns the block that a large transposed matrix is copied through: aten/src/ATen/native/Copy.cpp,
/// copy_transpose_valid and copy_same_type_transpose_.
std::vector<at::Tensor> block_of_transpose(const at::Tensor& to, const at::Tensor& from) {
  constexpr int64_t kRows = 60, kRowsOfBytes = 120;
  const bool through_blocks = from.dim() == 2 && from.numel() >= kRows * kRows && from.stride(0) == 1 &&
                              from.stride(1) == from.size(0) && to.is_contiguous() && to.sizes() == from.sizes() &&
                              to.scalar_type() == from.scalar_type();
  if (!through_blocks) return {};
  const int64_t rows = to.scalar_type() == at::kByte ? kRowsOfBytes : kRows;
  return {at::empty({rows, rows}, to.options())};
}

std::unique_ptr<at::ObserverContext> hold_copies(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const bool is_copy = name == "aten::copy_";
  if (!is_copy && !computes_in_one_dtype(name)) return nullptr;
  std::vector<at::Tensor> operands;
  for (const c10::IValue& input : function.inputs()) {
    if (input.isTensor() && input.toTensor().dim() > 0) operands.push_back(input.toTensor());
  }
  if (operands.size() != 2 || !has_host_scratch(operands[0])) return nullptr;
  auto copies = std::make_unique<Copies>();
  copies->tensors = is_copy ? block_of_transpose(operands[0], operands[1]) : casts(operands, name.back() == '_');
  return copies;
}

}  // namespace

HostCopies::HostCopies()
    : callback_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&hold_copies).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}

HostCopies::~HostCopies() {
  at::removeCallback(callback_);
}

}  // namespace meshtrain

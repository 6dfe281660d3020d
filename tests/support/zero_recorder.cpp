#include "tests/support/zero_recorder.h"

#include <ATen/record_function.h>

#include <memory>
#include <string_view>

namespace meshtrain::testing {
namespace {

std::vector<at::Tensor> recorded;

std::unique_ptr<at::ObserverContext> record(const at::RecordFunction& function) {
  if (std::string_view(function.name()) == "aten::zero_") recorded.push_back(function.inputs()[0].toTensor());
  return nullptr;
}

}  // namespace

ZeroRecorder::ZeroRecorder() {
  recorded.clear();
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&record).scopes({at::RecordScope::FUNCTION}).needsInputs(true));
}

ZeroRecorder::~ZeroRecorder() {
  at::removeCallback(handle_);
  recorded.clear();
}

const std::vector<at::Tensor>& ZeroRecorder::tensors() const {
  return recorded;
}

}  // namespace meshtrain::testing

// Built with NDEBUG, as LibTorch is: otherwise RecordFunction::inputs() asserts on a flag that LibTorch never sets.
#include "tests/context_parallel/score_counter.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <atomic>
#include <string>

namespace meshtrain::testing {
namespace {

std::atomic<int64_t> counted = 0;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
  const std::string name = function.name();
  const bool forward = name == "aten::_scaled_dot_product_flash_attention_for_cpu";
  if (!forward && name != "aten::_scaled_dot_product_flash_attention_for_cpu_backward") return nullptr;
  const auto inputs = function.inputs();  // forward: q k v dropout causal; backward: grad q k v out lse dropout causal
  const at::Tensor q = inputs[forward ? 0 : 1].toTensor(), k = inputs[forward ? 1 : 2].toTensor();
  const bool causal = inputs[forward ? 4 : 7].toBool();
  const int64_t n = q.size(2), m = k.size(2);
  counted += q.size(0) * q.size(1) * (causal ? n * (n + 1) / 2 : n * m);
  return nullptr;
}

}  // namespace

ScoreCounter::ScoreCounter() {
  counted = 0;
  handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}).needsInputs(true));
}

ScoreCounter::~ScoreCounter() {
  at::removeCallback(handle_);
}

int64_t ScoreCounter::scores() const {
  return counted;
}

}  // namespace meshtrain::testing

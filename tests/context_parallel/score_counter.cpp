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
  const bool ours = name.starts_with("meshtrain::host_attention");
  if (!ours && !name.starts_with("aten::_scaled_dot_product_flash_attention_for_cpu")) return nullptr;
  // Forward: q k v [dropout] causal; backward: grad q k v out lse [dropout] causal. LibTorch's have a dropout.
  const bool backward = name.ends_with("_backward");
  const auto inputs = function.inputs();
  const at::Tensor q = inputs[backward ? 1 : 0].toTensor(), k = inputs[backward ? 2 : 1].toTensor();
  const bool causal = inputs[(backward ? 6 : 3) + (ours ? 0 : 1)].toBool();
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

#include "runtime/program/forecast/operator_replay.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "context_parallel/attention_kernels.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

/// Operators of the CPU that were called, with their first input's shape.
std::vector<std::string> called;

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
  called.emplace_back(function.name());
  return nullptr;
}

TEST(OperatorReplay, CallsOnTheCpuWhatADryRunCalled) {
  TimelineRecorder recorder(true);
  const at::TensorOptions meta(at::kMeta);
  const at::Tensor q = at::empty({1, 4, 32, 8}, meta), x = at::empty({64, 48}, meta);
  recorder.restart();
  at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, true);
  at::silu(x.t());
  at::cat({x, x});
  const Timeline timeline = recorder.take();
  ASSERT_EQ(timeline.signatures.size(), 3u);
  for (const OperatorSignature& signature : timeline.signatures) {
    const Replay replay = make_replay(signature, OperatorCall());
    called.clear();
    const auto callback =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
    replay.run();
    at::removeCallback(callback);
    ASSERT_FALSE(called.empty());
    EXPECT_EQ(signature.text.rfind(called.front(), 0), 0u) << signature.text << " called " << called.front();
  }
}

}  // namespace
}  // namespace meshtrain

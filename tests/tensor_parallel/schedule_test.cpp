#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/meta_device.h"
#include "mesh/device/repeated_calls.h"
#include "mesh/device/row_chunks.h"
#include "tensor_parallel/embedding.h"
#include "tensor_parallel/linear.h"
#include "tensor_parallel/linear_cross_entropy.h"
#include "tests/tensor_parallel/layers.h"

// The order in which the backward of the linear layers multiplies, communicates and waits.

namespace meshtrain::testing {
namespace {

using Events = std::vector<std::string>;

Events* events = nullptr;

class RecordedWait final : public Work::State {
 public:
  explicit RecordedWait(std::string name) : name_(std::move(name)) {}
  void wait() override { events->push_back("wait " + name_); }

 private:
  std::string name_;
};

/// One of `size` ranks that do not exist. Records what is issued and waited for.
class RecordedBackend final : public Backend {
 public:
  explicit RecordedBackend(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  Work issue(const Collective& collective) override {
    const std::string issued = name(collective.kind);
    events->push_back(issued);
    return Work(std::make_shared<RecordedWait>(issued));
  }
  std::shared_ptr<Backend> split(const std::vector<int>&, const GroupTraits&) override { return nullptr; }

 private:
  int size_;
};

std::unique_ptr<at::ObserverContext> record_product(const at::RecordFunction& function) {
  const std::string name = function.name();
  for (const char* noted : {"aten::mm", "aten::addmm", "aten::addmm_", "aten::sum", "aten::exp_", "aten::index_add_"}) {
    if (name == noted) events->insert(events->end(), static_cast<size_t>(RepeatedCalls::current()), name.substr(6));
  }
  return nullptr;
}

/// Records the events of `run`: products, sums and the work of loss and embedding by name, collectives, waits.
template <class Run>
Events recorded(Run run) {
  Events seen;
  events = &seen;
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(record_product).scopes({at::RecordScope::FUNCTION}));
  run();
  at::removeCallback(handle);
  events = nullptr;
  return seen;
}

TensorParallel recorded_tp(int size, bool sequence_parallel) {
  std::vector<int64_t> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  const Group group =
      size == 1 ? Group() : Group(std::make_shared<RecordedBackend>(size), "tp", std::move(ranks), "rank 0");
  return {group, sequence_parallel};
}

struct Options {
  int size = 2;
  bool sequence_parallel = false;
  Storage storage = Storage::Flat;
  bool input_needs_gradient = true;
  bool frozen = false;
};

constexpr int64_t kScheduledTokens = 8;
const at::TensorOptions kMeta = at::TensorOptions().device(at::kMeta).dtype(at::kFloat);

void prepare(const std::vector<Parameter*>& parameters, const Options& options) {
  std::map<std::string, at::Tensor> values;
  for (const Parameter* parameter : parameters) values[parameter->name] = at::empty(parameter->global_shape, kMeta);
  materialize(parameters, values, options.storage);
  for (Parameter* parameter : parameters) {
    if (!options.frozen) continue;
    parameter->tensor.mutable_grad().reset();
    parameter->tensor.set_requires_grad(false);
  }
}

Events column_backward(const Options& options) {
  const TensorParallel tp = recorded_tp(options.size, options.sequence_parallel);
  ColumnParallelLinear layer(tp, 16, {{"q", 16}, {"k", 8}, {"v", 8}}, true, {}, kMeta);
  prepare(layer.parameters(), options);
  const at::Tensor x = at::empty({tp.splits_rows() ? kScheduledTokens / options.size : kScheduledTokens, 16}, kMeta);
  x.set_requires_grad(options.input_needs_gradient);
  at::Tensor y;
  recorded([&] { y = layer.forward(x); });
  return recorded([&] { y.backward(at::empty_like(y)); });
}

Events row_backward(const Options& options) {
  const TensorParallel tp = recorded_tp(options.size, options.sequence_parallel);
  RowParallelLinear layer(tp, "down", 16, 8, true, {}, kMeta);
  prepare(layer.parameters(), options);
  const at::Tensor x = at::empty({kScheduledTokens, 16 / options.size}, kMeta);
  x.set_requires_grad(options.input_needs_gradient);
  at::Tensor y;
  recorded([&] { y = layer.forward(x); });
  return recorded([&] { y.backward(at::empty_like(y)); });
}

TEST(Schedule, ColumnReducesTheInputGradientBesideTheWeightGradient) {
  EXPECT_EQ(column_backward({}), (Events{"mm", "all_reduce", "sum", "addmm_", "wait all_reduce"}));
}

TEST(Schedule, ColumnUnderSequenceParallelHidesBothCollectives) {
  EXPECT_EQ(column_backward({.sequence_parallel = true}),
            (Events{"all_gather", "mm", "reduce_scatter", "sum", "wait all_gather", "addmm_", "wait reduce_scatter"}));
}

TEST(Schedule, RowGathersTheOutputGradientUnderSequenceParallel) {
  EXPECT_EQ(row_backward({.sequence_parallel = true}),
            (Events{"all_gather", "sum", "wait all_gather", "mm", "addmm_"}));
  EXPECT_EQ(row_backward({}), (Events{"sum", "mm", "addmm_"}));
}

TEST(Schedule, OneRankCommunicatesNothing) {
  EXPECT_EQ(column_backward({.size = 1, .sequence_parallel = true}), (Events{"mm", "sum", "addmm_"}));
  EXPECT_EQ(row_backward({.size = 1, .sequence_parallel = true}), (Events{"sum", "mm", "addmm_"}));
}

TEST(Schedule, WithoutBuffersThereIsStillOneProductForAllOutputs) {
  EXPECT_EQ(column_backward({.size = 1, .storage = Storage::Loose}), (Events{"mm", "sum", "mm"}));
}

TEST(Schedule, AnInputWithoutGradientCostsNothing) {
  EXPECT_EQ(column_backward({.input_needs_gradient = false}), (Events{"sum", "addmm_"}));
  EXPECT_EQ(column_backward({.sequence_parallel = true, .input_needs_gradient = false}),
            (Events{"all_gather", "sum", "wait all_gather", "addmm_"}));
  EXPECT_EQ(row_backward({.sequence_parallel = true, .input_needs_gradient = false}),
            (Events{"all_gather", "sum", "wait all_gather", "addmm_"}));
}

TEST(Schedule, FrozenParametersCostNothing) {
  EXPECT_EQ(column_backward({.frozen = true}), (Events{"mm", "all_reduce", "wait all_reduce"}));
  EXPECT_EQ(column_backward({.sequence_parallel = true, .frozen = true}),
            (Events{"mm", "reduce_scatter", "wait reduce_scatter"}));
  EXPECT_EQ(row_backward({.sequence_parallel = true, .frozen = true}), (Events{"all_gather", "wait all_gather", "mm"}));
}

/// Returns the events for 8 tokens in chunks of `tokens`, over `ranks`.
Events loss_backward(int64_t tokens, bool sequence_parallel, int ranks = 2) {
  const TensorParallel tp = recorded_tp(ranks, sequence_parallel);
  Parameter head = sharded_parameter("head", {32, 8}, 0, tp.group, {}, kMeta);
  materialize({&head}, {{"head", at::empty({32, 8}, kMeta)}}, Storage::Flat);
  const at::Tensor x = at::empty({tp.splits_rows() ? 4 : 8, 8}, kMeta).requires_grad_();
  at::Tensor loss;
  const Events forward = recorded([&] {
    const at::Tensor labels = at::empty({8}, kMeta.dtype(at::kLong));
    loss = linear_cross_entropy(x, head, labels, -100, tp, tokens);
  });
  EXPECT_EQ(forward, Events{});
  Events seen = recorded([&] { loss.backward(); });
  // Exponentials and sums of small tensors do not matter.
  seen.erase(std::remove_if(seen.begin(), seen.end(), [](const auto& name) { return name == "exp_" || name == "sum"; }),
             seen.end());
  return seen;
}

Events joined(const std::vector<Events>& parts) {
  Events all;
  for (const Events& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// The logits of a chunk and its maximum; its sums, once the maximum has arrived; its gradients, once the sums have.
const Events kLogits = {"mm", "all_reduce"}, kSums = {"wait all_reduce", "all_reduce"}, kArrived = {"wait all_reduce"};
const Events kGradients = {"mm", "addmm_"};

TEST(Schedule, TheLossReducesTheInputGradientBesideTheLastWeightGradient) {
  EXPECT_EQ(loss_backward(8, false),
            joined({kLogits, kSums, kArrived, {"mm", "all_reduce", "addmm_", "wait all_reduce"}}));
}

TEST(Schedule, TheLossReducesSumsBesideTheNextLogitsAndMaximaBesideGradients) {
  EXPECT_EQ(loss_backward(4, true), joined({{"all_gather", "wait all_gather"},
                                            kLogits,
                                            kSums,
                                            kLogits,
                                            kArrived,
                                            kGradients,
                                            kSums,
                                            kArrived,
                                            {"mm", "reduce_scatter", "addmm_", "wait reduce_scatter"}}));
}

TEST(Schedule, TheLossOfOneRankFinishesAChunkBeforeTheNext) {
  const Events chunk = {"mm", "mm", "addmm_"};
  EXPECT_EQ(loss_backward(4, false, 1), joined({chunk, chunk}));
}

template <class Run>
int64_t count(const std::string& event, Run run) {
  const Events seen = recorded(run);
  return std::count(seen.begin(), seen.end(), event);
}

int64_t pieces(int64_t rows, int64_t row_bytes) {
  const int64_t chunk = kTemporaryBytes / row_bytes;
  return (rows + chunk - 1) / chunk;
}

TEST(Schedule, LargeTemporariesAreCutIntoPiecesOnTheHost) {
  for (const bool on_host : {true, false}) {  // a GPU's kernels have none
    const MetaDeviceGuard device(on_host ? at::kCPU : at::kCUDA);
    const at::TensorOptions half = kMeta.dtype(at::kBFloat16);
    const auto product = [&](at::ScalarType dtype, at::ScalarType sum) {
      const at::Tensor weight = at::empty({2500, 2048}, kMeta.dtype(dtype)).requires_grad_();
      weight.mutable_grad() = at::empty({2500, 2048}, kMeta.dtype(sum));
      const at::Tensor y = column_parallel_linear(at::empty({4, 2048}, weight.options()), {weight}, {}, {});
      return [=] { y.backward(at::empty_like(y)); };
    };
    product(at::kFloat, at::kDouble)();  // measures what the host's products allocate
    EXPECT_EQ(count("mm", product(at::kFloat, at::kDouble)), pieces(2500, 2048 * 4));
    if (!on_host) {
      EXPECT_EQ(count("addmm", product(at::kBFloat16, at::kFloat)), 1);
    }

    const at::Tensor ids = at::empty({3000}, kMeta.dtype(at::kLong));
    VocabParallelEmbedding embedding({}, "embed", 97, 2048, {}, half);
    embedding.weight().tensor = at::empty({97, 2048}, half).requires_grad_();
    embedding.weight().tensor.mutable_grad() = at::empty({97, 2048}, kMeta);
    const at::Tensor rows = embedding.forward(ids);
    EXPECT_EQ(count("index_add_", [&] { rows.backward(at::empty_like(rows)); }), on_host ? pieces(3000, 2048 * 4) : 0);

    Parameter head = full_parameter("head", {5000, 8}, {}, half);
    materialize({&head}, {{"head", at::empty({5000, 8}, kMeta)}}, Storage::Flat);
    const at::Tensor labels = at::empty({3000}, kMeta.dtype(at::kLong));
    const at::Tensor loss = linear_cross_entropy(at::empty({3000, 8}, half), head, labels, -100, {});
    EXPECT_EQ(count("exp_", [&] { loss.backward(); }), on_host ? 2 * pieces(3000, 5000 * 4) : 0)
        << "for the sum and the gradient";
  }
}

}  // namespace
}  // namespace meshtrain::testing

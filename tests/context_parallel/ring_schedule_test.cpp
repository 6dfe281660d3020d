// Overlap is real: a hop is issued before the blocks that compute during it, and waited for after them.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "context_parallel/attention.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using Events = std::vector<std::string>;
Events events;

class RecordedWait final : public Work::State {
 public:
  explicit RecordedWait(std::string name) : name_(std::move(name)) {}
  void wait() override { events.push_back("wait " + name_); }

 private:
  std::string name_;
};

/// Rank `rank` of `size` ranks that do not exist. Records what is issued and waited for. Keys and values travel in
/// bf16, their gradients in fp32.
class RecordedBackend final : public Backend {
 public:
  RecordedBackend(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work issue(const Collective& collective) override {
    if (collective.kind != Collective::Kind::AllToAll) {
      EXPECT_EQ(collective.kind, Collective::Kind::Exchange);
      EXPECT_EQ(collective.to, (rank_ + 1) % size_);
      EXPECT_EQ(collective.from, (rank_ + size_ - 1) % size_);
    }
    EXPECT_NE(collective.input.data_ptr(), collective.output.data_ptr()) << "double buffered";
    const bool gradients = collective.input.scalar_type() == at::kFloat;
    const std::string what =
        gradients ? "gradients " + std::to_string(++num_gradients_) : "keys " + std::to_string(++num_keys_);
    events.push_back("issue " + what);
    return Work(std::make_shared<RecordedWait>(what));
  }
  std::shared_ptr<Backend> split(const std::vector<int>&, const GroupTraits&) override { return nullptr; }

 private:
  int rank_, size_;
  int num_keys_ = 0, num_gradients_ = 0;
};

std::unique_ptr<at::ObserverContext> record_kernel(const at::RecordFunction& function) {
  if (std::string(function.name()).starts_with("aten::_scaled_dot_product")) events.push_back("block");
  return nullptr;
}

/// Returns the events of one rank of three in forward, and in backward.
std::pair<Events, Events> ring_of_three(int rank, SequenceLayout::Kind kind = SequenceLayout::Kind::ZigZag,
                                        int64_t window = 0, ContextAlgorithm algorithm = ContextAlgorithm::Ring) {
  const SequenceLayout layout(kind, 24, 3, rank);
  const auto leaf = [](int64_t heads) { return at::ones({1, heads, 8, 8}, at::kBFloat16).set_requires_grad(true); };
  const auto run = [&](const Group& group) {
    return attention(leaf(4), leaf(2), leaf(2), layout, group, algorithm, {0.3, window});
  };
  const auto group = [&] { return Group(std::make_shared<RecordedBackend>(rank, 3), "cp", {0, 1, 2}, "rank 0"); };
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(record_kernel).scopes({at::RecordScope::FUNCTION}));
  std::pair<Events, Events> seen;
  events.clear();
  run(group());
  seen.first = events;
  const at::Tensor out = run(group());
  events.clear();
  out.backward(at::ones_like(out));
  seen.second = events;
  at::removeCallback(handle);
  return seen;
}

TEST(RingSchedule, KeysTravelWhileTheBlocksBeforeThemCompute) {
  EXPECT_EQ(ring_of_three(0).first, (Events{"issue keys 1", "block", "block", "block", "wait keys 1",  //
                                            "issue keys 2", "block", "wait keys 2",                    //
                                            "block"}));
  EXPECT_EQ(ring_of_three(2).first, (Events{"issue keys 1", "block", "wait keys 1",  // its two chunks adjoin
                                            "issue keys 2", "block", "wait keys 2",  //
                                            "block"}));
}

TEST(RingSchedule, GradientsFollowOneHopBehindAndComeHomeBesideOwnBlocks) {
  // The numbers of keys in backward continue those of forward, 1 and 2.
  EXPECT_EQ(ring_of_three(0).second,
            (Events{"issue keys 3", "block", "block", "wait keys 3",  // half of the own blocks: the diagonals
                    "issue keys 4", "block", "issue gradients 1", "wait keys 4",  //
                    "block", "wait gradients 1", "issue gradients 2",             //
                    "block", "wait gradients 2"}));                               // the other half
}

constexpr auto kInOrder = SequenceLayout::Kind::Contiguous;

TEST(RingSchedule, AWindowSkipsHops) {
  EXPECT_EQ(ring_of_three(2, kInOrder, 8).first, (Events{"issue keys 1", "block", "wait keys 1", "block"}));
  // Parts of 8: the farthest keys are the last of the rank but one.
  const auto [forward, backward] = ring_of_three(2, kInOrder, 10);
  EXPECT_EQ(forward, (Events{"issue keys 1", "block", "wait keys 1",  //
                             "issue keys 2", "block", "block", "block", "wait keys 2", "block"}));
  EXPECT_EQ(backward, (Events{"issue keys 3", "block", "wait keys 3",                                         //
                              "issue keys 4", "block", "block", "block", "issue gradients 1", "wait keys 4",  //
                              "block", "wait gradients 1", "issue gradients 2", "wait gradients 2"}));
}

TEST(RingSchedule, AWindowOfAllGatherIsOneCall) {
  const auto [forward, backward] = ring_of_three(2, kInOrder, 10, ContextAlgorithm::AllGather);
  EXPECT_EQ(forward, (Events{"issue keys 1", "block", "wait keys 1", "block", "block", "block", "block"}));
  EXPECT_EQ(backward, (Events{"issue keys 2", "block", "wait keys 2", "block", "block", "block", "block",
                              "issue gradients 1", "wait gradients 1"}));
}

}  // namespace
}  // namespace meshtrain

#include "context_parallel/window_attention.h"

#include <numeric>
#include <utility>

#include "context_parallel/block_attention.h"
#include "context_parallel/blocks.h"
#include "context_parallel/key_value_wire.h"
#include "context_parallel/sinks.h"
#include "mesh/device/aten.h"

namespace meshtrain {

namespace {

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

KeyValues part_of(const KeyValues& all, int64_t first, int64_t count) {
  return {all.packed.narrow(0, first, count)};
}

}  // namespace

/// Keys and values on their way: those of one message.
class WindowAttention::Keys {
 public:
  Keys(const Group& group, const Message& message, const at::Tensor& k, const at::Tensor& v)
      : sent_(KeyValues::empty(sum_of(message.sent), k, k.scalar_type())),
        received_(KeyValues::empty(sum_of(message.received), k, k.scalar_type())) {
    int64_t offset = 0;
    for (const SequenceLayout::Chunk& chunk : message.positions) {
      const KeyValues part = part_of(sent_, offset, chunk.size);
      part.keys().copy_(k.narrow(2, chunk.start, chunk.size));
      part.values().copy_(v.narrow(2, chunk.start, chunk.size));
      offset += chunk.size;
    }
    work_ = group.all_to_all(received_.packed, message.received, sent_.packed, message.sent);
  }
  const KeyValues& wait() {
    work_.wait();
    sent_ = {};
    return received_;
  }

 private:
  KeyValues sent_, received_;
  Work work_;
};

WindowAttention::WindowAttention(const SequenceLayout& layout, const Group& group, int64_t batch,
                                 const AttentionRule& rule, const KernelCallOptions& options, bool at_once)
    : group_(group), rule_(rule), own_(hop_calls(layout, batch, group.rank(), options)) {
  const std::vector<int> hops = hops_within(layout, rule.window);
  if (at_once) {
    if (!hops.empty()) messages_.push_back(message_of(layout, batch, options, hops));
  } else {
    for (const int hop : hops) messages_.push_back(message_of(layout, batch, options, {hop}));
  }
}

WindowAttention::Message WindowAttention::message_of(const SequenceLayout& layout, int64_t batch,
                                                     const KernelCallOptions& options,
                                                     const std::vector<int>& hops) const {
  const int rank = group_.rank(), size = group_.size();
  Message message{
      std::vector<int64_t>(static_cast<size_t>(size)), std::vector<int64_t>(static_cast<size_t>(size)), {}, {}};
  const auto size_of = [](const std::vector<SequenceLayout::Chunk>& chunks) {
    int64_t sum = 0;
    for (const SequenceLayout::Chunk& chunk : chunks) sum += chunk.size;
    return sum;
  };
  std::vector<bool> to(static_cast<size_t>(size)), from(static_cast<size_t>(size));
  for (const int hop : hops) {
    to[static_cast<size_t>((rank + hop) % size)] = true;
    from[static_cast<size_t>((rank + size - hop) % size)] = true;
  }
  int64_t first = 0;
  for (int peer = 0; peer < size; ++peer) {
    const auto index = static_cast<size_t>(peer);
    if (to[index]) {
      const std::vector<SequenceLayout::Chunk> sent = keys_within(layout, peer, rank, rule_.window);
      message.sent[index] = size_of(sent);
      message.positions.insert(message.positions.end(), sent.begin(), sent.end());
    }
    if (from[index]) {
      const int64_t count = size_of(keys_within(layout, rank, peer, rule_.window));
      message.received[index] = count;
      if (count > 0) message.sources.push_back({first, count, hop_calls(layout, batch, peer, options)});
      first += count;
    }
  }
  return message;
}

AttentionCall::Forward WindowAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto sent = [&](size_t i) { return std::make_unique<Keys>(group_, messages_[i], k, v); };
  std::unique_ptr<Keys> next = messages_.empty() ? nullptr : sent(0);
  RunningAttention running(q, rule_);
  for (const KernelCall& call : own_->calls) running.add(call, k, v);
  for (size_t i = 0; i < messages_.size(); ++i) {
    const std::unique_ptr<Keys> here = std::move(next);
    const KeyValues& keys = here->wait();
    if (i + 1 < messages_.size()) next = sent(i + 1);
    for (const Source& source : messages_[i].sources) {
      const KeyValues part = part_of(keys, source.first, source.count);
      for (const KernelCall& call : source.calls->calls) running.add(call, part.keys(), part.values());
    }
  }
  const AttentionResult attended = running.finish();
  return {attended.out, {q, k, v, attended.out, attended.lse}};
}

AttentionGradients WindowAttention::backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
  const AttentionResult attended{saved[3], saved[4]};
  const at::ScalarType dtype = attended.lse.scalar_type();
  RunningGradients running(grad_out, q, attended, rule_);
  const KeyValues own = KeyValues::zeros(k.size(2), k, dtype);
  const size_t first_half = messages_.empty() ? own_->calls.size() : half_of(own_->calls);
  const auto compute_own = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) running.add(own_->calls[i], k, v, own.keys(), own.values());
  };

  /// Gradients of a message's keys, on their way back: sent to where the keys came from.
  struct GradientReturn {
    const Message* message;
    KeyValues sent, received;
    Work work;
  };
  const auto arrive = [&](GradientReturn& returning) {
    if (returning.message == nullptr) return;
    returning.work.wait();
    int64_t offset = 0;
    for (const SequenceLayout::Chunk& chunk : returning.message->positions) {
      own.packed.narrow(0, chunk.start, chunk.size).add_(part_of(returning.received, offset, chunk.size).packed);
      offset += chunk.size;
    }
    returning = {};
  };

  const auto sent = [&](size_t i) { return std::make_unique<Keys>(group_, messages_[i], k, v); };
  std::unique_ptr<Keys> next = messages_.empty() ? nullptr : sent(0);
  GradientReturn returning{};
  compute_own(0, first_half);
  for (size_t i = 0; i < messages_.size(); ++i) {
    const Message& message = messages_[i];
    const std::unique_ptr<Keys> here = std::move(next);
    const KeyValues& keys = here->wait();
    if (i + 1 < messages_.size()) next = sent(i + 1);
    const KeyValues gradients = KeyValues::zeros(sum_of(message.received), k, dtype);
    for (const Source& source : message.sources) {
      const KeyValues part = part_of(keys, source.first, source.count);
      const KeyValues sums = part_of(gradients, source.first, source.count);
      for (const KernelCall& call : source.calls->calls) {
        running.add(call, part.keys(), part.values(), sums.keys(), sums.values());
      }
    }
    arrive(returning);
    returning = {&message, gradients, KeyValues::empty(sum_of(message.sent), k, dtype), {}};
    returning.work =
        group_.all_to_all(returning.received.packed, message.sent, returning.sent.packed, message.received);
  }
  compute_own(first_half, own_->calls.size());
  const at::Tensor sinks = sinks_gradient(grad_out, attended, rule_.sinks);
  arrive(returning);
  return {running.queries(), own.keys().to(k.scalar_type()), own.values().to(v.scalar_type()), sinks};
}

}  // namespace meshtrain

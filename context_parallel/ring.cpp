#include "context_parallel/ring.h"

#include <utility>

#include "context_parallel/block_attention.h"
#include "context_parallel/key_value_wire.h"
#include "context_parallel/sinks.h"
#include "mesh/device/aten.h"

namespace meshtrain {

namespace {

/// A buffer that travels round a ring, and one that receives the next while this one is sent.
class Carousel {
 public:
  Carousel(const Group& group, KeyValues here)
      : group_(group), here_(std::move(here)), coming_{at::empty_like(here_.packed)} {}

  const KeyValues& here() const { return here_; }

  /// Starts the next hop: sends the buffer to the next rank. The buffer may be read meanwhile.
  void depart() {
    const int rank = group_.rank(), size = group_.size();
    work_ = group_.exchange(coming_.packed, (rank + size - 1) % size, here_.packed, (rank + 1) % size);
  }
  /// Waits until the buffer of the previous rank has arrived.
  void arrive() {
    work_.wait();
    std::swap(here_, coming_);
  }

 private:
  Group group_;
  KeyValues here_;
  KeyValues coming_;
  Work work_;
};

}  // namespace

RingAttention::RingAttention(const SequenceLayout& layout, const Group& group, int64_t batch, const AttentionRule& rule,
                             const KernelCallOptions& options)
    : group_(group), rule_(rule) {
  const int size = group.size();
  for (int hop = 0; hop < size; ++hop) {
    hops_.push_back(hop_calls(layout, batch, (group.rank() + size - hop) % size, options));
  }
}

AttentionCall::Forward RingAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  Carousel carousel(group_, KeyValues::pack(k, v));
  RunningAttention running(q, rule_);
  for (size_t hop = 0; hop < hops_.size(); ++hop) {
    const bool last = hop + 1 == hops_.size();
    if (!last) carousel.depart();
    for (const KernelCall& call : hops_[hop]->calls)
      running.add(call, carousel.here().keys(), carousel.here().values());
    if (!last) carousel.arrive();
  }
  const AttentionResult attended = running.finish();
  return {attended.out, {q, k, v, attended.out, attended.lse}};
}

AttentionGradients RingAttention::backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
  const AttentionResult attended{saved[3], saved[4]};
  const at::ScalarType dtype = attended.lse.scalar_type();
  RunningGradients running(grad_out, q, attended, rule_);
  const KeyValues own = KeyValues::zeros(k.size(2), k, dtype);
  const std::vector<KernelCall>& own_calls = hops_[0]->calls;
  const size_t first_half = half_of(own_calls);
  const auto compute_own = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) running.add(own_calls[i], k, v, own.keys(), own.values());
  };

  Carousel keys(group_, KeyValues::pack(k, v));
  Carousel gradients(group_, KeyValues::zeros(k.size(2), k, dtype));  // gradients of the keys in this rank's buffer
  KeyValues share;  // this rank's share of the gradients that are travelling
  if (hops_.size() > 2) share = KeyValues::empty(k.size(2), k, dtype);
  keys.depart();
  compute_own(0, first_half);
  for (size_t hop = 1; hop < hops_.size(); ++hop) {
    keys.arrive();
    if (hop + 1 < hops_.size()) keys.depart();
    if (hop > 1) share.packed.zero_();
    const KeyValues& sum = hop > 1 ? share : gradients.here();
    for (const KernelCall& call : hops_[hop]->calls) {
      running.add(call, keys.here().keys(), keys.here().values(), sum.keys(), sum.values());
    }
    if (hop > 1) {
      gradients.arrive();
      gradients.here().packed.add_(share.packed);
    }
    gradients.depart();
  }
  compute_own(first_half, own_calls.size());
  const at::Tensor sinks = sinks_gradient(grad_out, attended, rule_.sinks);
  gradients.arrive();
  own.packed.add_(gradients.here().packed);
  return {running.queries(), own.keys().to(k.scalar_type()), own.values().to(v.scalar_type()), sinks};
}

}  // namespace meshtrain

#include "runtime/training/model/key_value_cache.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "context_parallel/block_attention.h"
#include "context_parallel/blocks.h"
#include "context_parallel/kernel_calls.h"
#include "context_parallel/sinks.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

/// Computes attention of one query, the last position, which sees every key inside its window, so that no mask is
/// needed. Heads that share keys are rows of one matrix: keys and values are read once.
at::Tensor attend_one(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, AttentionRule rule) {
  const int64_t kv_heads = keys.size(1), length = keys.size(2), window = std::exchange(rule.window, 0);
  const int64_t seen = window > 0 ? std::min(window, length) : length;
  const auto last = [&](const at::Tensor& all) { return all.narrow(2, length - seen, seen); };
  const at::Tensor rows = q.reshape({1, kv_heads, q.size(1) / kv_heads, q.size(3)});
  const AttentionResult attended = attend(rows, last(keys), last(values), Pairs::All, rule);
  const at::Tensor out = attended.out.reshape(q.sizes());
  if (rule.sinks.defined()) add_sinks({out, attended.lse.reshape({1, q.size(1), 1})}, rule.sinks);
  return out.to(q.scalar_type());
}

}  // namespace

KeyValueCache::KeyValueCache(const ModelShape& shape, int64_t tp, int64_t capacity, const at::TensorOptions& options) {
  const std::vector<int64_t> sizes = {1, shape.num_key_value_heads / tp, capacity, shape.head_dim};
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    layers_.push_back({at::empty(sizes, options), at::empty(sizes, options)});
  }
}

at::Tensor KeyValueCache::attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionRule& rule) {
  Layer& here = layers_[static_cast<size_t>(layer)];
  const int64_t past = here.length, count = k.size(2);
  if (past + count > capacity()) {
    throw std::logic_error("key-value cache: " + std::to_string(past) + " and " + std::to_string(count) +
                           " more positions, but its capacity is " + std::to_string(capacity()));
  }
  here.keys.narrow(2, past, count).copy_(k);
  here.values.narrow(2, past, count).copy_(v);
  here.length += count;
  if (count == 1) {
    return attend_one(q, here.keys.narrow(2, 0, here.length), here.values.narrow(2, 0, here.length), rule);
  }
  RunningAttention running(q, rule);
  const KernelCallOptions options = kernel_call_options(q, SequenceLayout::unsharded(count), rule);
  for (const ScoreBlock& block : computable(cut({0, count}, {0, count}, {}, rule.window), options)) {
    running.add(block, k, v);
  }
  for (ScoreBlock block : cut({past, count}, {0, past}, {}, rule.window)) {
    block.query -= past;
    running.add(block, here.keys, here.values);
  }
  return running.finish().out;
}

}  // namespace meshtrain

#include "context_parallel/block_attention.h"

#include <stdexcept>
#include <string>

#include "context_parallel/merge.h"
#include "context_parallel/sinks.h"
#include "mesh/device/aten.h"

namespace meshtrain {

namespace {

/// Returns `count` positions of each row or tile of a block, from `first` on: a view [rows or tiles, heads, count,
/// ...].
at::Tensor positions_of(const at::Tensor& tensor, const ScoreBlock& block, int64_t first, int64_t count) {
  const at::Tensor rows = tensor.narrow(0, block.first_row, block.num_rows);
  if (block.num_tiles == 1) return rows.narrow(2, first, count);
  const int64_t extent = (block.num_tiles - 1) * block.stride + count;
  return rows.narrow(2, first, extent).unfold(2, count, block.stride).select(0, 0).movedim({1, -1}, {0, 2});
}

at::Tensor queries_of(const at::Tensor& tensor, const ScoreBlock& block) {
  return positions_of(tensor, block, block.query, block.num_queries);
}

at::Tensor keys_of(const at::Tensor& tensor, const ScoreBlock& block) {
  return positions_of(tensor, block, block.key, block.num_keys);
}

/// Returns `rule` with the window of the call's blocks.
AttentionRule rule_of(const KernelCall& call, AttentionRule rule) {
  rule.window = call.blocks.front().window;
  return rule;
}

using Part = at::Tensor (*)(const at::Tensor&, const ScoreBlock&);

/// Joins the `part` of the blocks in `tensor` [B, heads, n, ...] along their positions: [T, heads, D], or for
/// log-sum-exps [heads, T]; anti-causal ones in the opposite order. One block that is in order in memory gives a view.
at::Tensor side_by_side(const at::Tensor& tensor, const std::vector<ScoreBlock>& blocks, Part part) {
  const int64_t heads = tensor.dim() == 4 ? 2 : 0;  // new index of the dim of heads; its old one is 1
  std::vector<at::Tensor> parts;
  for (const ScoreBlock& block : blocks) {
    const at::Tensor ordered = part(tensor, block).movedim(1, heads);
    parts.push_back(heads == 0 ? ordered.flatten(1, 2) : ordered.flatten(0, 1));
  }
  const int64_t positions = heads == 0 ? 1 : 0;
  const at::Tensor all = parts.size() == 1 ? parts.front() : at::cat(parts, positions);
  return blocks.front().pairs == Pairs::AntiCausal ? all.flip(positions) : all;
}

/// Returns packed [T, heads, D] or [heads, T] in the order of the blocks' positions.
at::Tensor in_order(const at::Tensor& packed, const KernelCall& call) {
  return call.blocks.front().pairs == Pairs::AntiCausal ? packed.flip(packed.dim() == 3 ? 0 : 1) : packed;
}

/// Does the inverse: returns `count` positions of each row of a block, from `offset` on, as [rows, heads, count, ...].
at::Tensor block_of(const at::Tensor& packed, int64_t offset, int64_t rows, int64_t count) {
  const int64_t dim = packed.dim() == 3 ? 0 : 1;
  const at::Tensor part = packed.narrow(dim, offset, rows * count).unflatten(dim, {rows, count});
  return dim == 0 ? part.transpose(1, 2) : part.transpose(0, 1);
}

}  // namespace

std::vector<AttentionResult> attend(const KernelCall& call, const at::Tensor& q, const at::Tensor& keys,
                                    const at::Tensor& values, const AttentionRule& rule) {
  const ScoreBlock& first = call.blocks.front();
  if (!call.lengths) {
    return {
        attend(queries_of(q, first), keys_of(keys, first), keys_of(values, first), first.pairs, rule_of(call, rule))};
  }
  const bool causal = first.pairs != Pairs::All;
  const AttentionResult packed =
      attend_packed(side_by_side(q, call.blocks, queries_of), side_by_side(keys, call.blocks, keys_of),
                    side_by_side(values, call.blocks, keys_of), *call.lengths, causal, rule_of(call, rule));
  const AttentionResult all{in_order(packed.out, call), in_order(packed.lse, call)};
  std::vector<AttentionResult> parts;
  int64_t offset = 0;
  for (const ScoreBlock& block : call.blocks) {
    parts.push_back({block_of(all.out, offset, block.num_rows, block.num_queries),
                     block_of(all.lse, offset, block.num_rows, block.num_queries)});
    offset += block.num_rows * block.num_queries;
  }
  return parts;
}

std::vector<AttentionGradients> attend_backward(const KernelCall& call, const at::Tensor& grad_out, const at::Tensor& q,
                                                const at::Tensor& keys, const at::Tensor& values,
                                                const AttentionResult& attended, const AttentionRule& rule) {
  const ScoreBlock& first = call.blocks.front();
  if (!call.lengths) {
    return {attend_backward(queries_of(grad_out, first), queries_of(q, first), keys_of(keys, first),
                            keys_of(values, first), {queries_of(attended.out, first), queries_of(attended.lse, first)},
                            first.pairs, rule_of(call, rule))};
  }
  const auto of_queries = [&](const at::Tensor& tensor) { return side_by_side(tensor, call.blocks, queries_of); };
  const auto of_keys = [&](const at::Tensor& tensor) { return side_by_side(tensor, call.blocks, keys_of); };
  const bool causal = first.pairs != Pairs::All;
  const AttentionGradients packed = attend_packed_backward(
      of_queries(grad_out), of_queries(q), of_keys(keys), of_keys(values),
      {of_queries(attended.out), of_queries(attended.lse)}, *call.lengths, causal, rule_of(call, rule));
  const AttentionGradients all{in_order(packed.q, call), in_order(packed.k, call), in_order(packed.v, call)};
  std::vector<AttentionGradients> parts;
  int64_t query = 0, key = 0;
  for (const ScoreBlock& block : call.blocks) {
    parts.push_back({block_of(all.q, query, block.num_rows, block.num_queries),
                     block_of(all.k, key, block.num_rows, block.num_keys),
                     block_of(all.v, key, block.num_rows, block.num_keys)});
    query += block.num_rows * block.num_queries;
    key += block.num_rows * block.num_keys;
  }
  return parts;
}

void RunningAttention::add(const KernelCall& call, const at::Tensor& keys, const at::Tensor& values) {
  if (!call.blocks.front().causal() && !complete()) {
    throw std::logic_error("attention: a block of queries from " + std::to_string(call.blocks.front().query) +
                           " on comes before all queries have met their own keys");
  }
  std::vector<AttentionResult> parts = attend(call, q_, keys, values, rule_);
  for (size_t i = 0; i < parts.size(); ++i) {
    const ScoreBlock& block = call.blocks[i];
    block.causal() ? start(block, std::move(parts[i])) : merge(block, parts[i]);
  }
}

void RunningAttention::start(const ScoreBlock& block, AttentionResult part) {
  const bool full = block.num_rows == q_.size(0) && block.num_queries == q_.size(2);
  num_started_ += block.num_rows * block.num_tiles * block.num_queries;
  if (full) {
    merged_ = std::move(part);
    return;
  }
  if (!merged_.out.defined()) {
    const at::ScalarType dtype = part.lse.scalar_type();
    merged_.out = empty_by_position(q_, dtype);
    merged_.lse = empty_by_position(q_.select(3, 0), dtype);
  }
  queries_of(merged_.out, block).copy_(part.out);
  queries_of(merged_.lse, block).copy_(part.lse);
}

void RunningAttention::merge(const ScoreBlock& block, const AttentionResult& part) {
  const at::ScalarType dtype = part.lse.scalar_type();
  if (merged_.out.scalar_type() != dtype) merged_.out = merged_.out.to(dtype);
  meshtrain::merge({queries_of(merged_.out, block), queries_of(merged_.lse, block)}, part);
}

AttentionResult RunningAttention::finish() {
  if (!complete()) {
    throw std::logic_error("attention: " + std::to_string(q_.size(0) * q_.size(2) - num_started_) + " of " +
                           std::to_string(q_.size(0) * q_.size(2)) + " queries have had no key");
  }
  if (rule_.sinks.defined()) add_sinks(merged_, rule_.sinks);
  return {merged_.out.to(q_.scalar_type()), std::move(merged_.lse)};
}

RunningGradients::RunningGradients(const at::Tensor& grad_out, const at::Tensor& q, const AttentionResult& attended,
                                   const AttentionRule& rule)
    : grad_out_(grad_out),
      q_(q),
      attended_(attended),
      rule_(rule),
      dq_(empty_by_position(q, attended.lse.scalar_type()).zero_()) {}

std::vector<AttentionGradients> RunningGradients::compute(const KernelCall& call, const at::Tensor& keys,
                                                          const at::Tensor& values) {
  std::vector<AttentionGradients> parts = attend_backward(call, grad_out_, q_, keys, values, attended_, rule_);
  for (size_t i = 0; i < parts.size(); ++i) queries_of(dq_, call.blocks[i]).add_(parts[i].q);
  return parts;
}

void RunningGradients::add(const KernelCall& call, const at::Tensor& keys, const at::Tensor& values,
                           const at::Tensor& key_gradients, const at::Tensor& value_gradients) {
  const std::vector<AttentionGradients> parts = compute(call, keys, values);
  for (size_t i = 0; i < parts.size(); ++i) {
    keys_of(key_gradients, call.blocks[i]).add_(parts[i].k);
    keys_of(value_gradients, call.blocks[i]).add_(parts[i].v);
  }
}

}  // namespace meshtrain

#include "context_parallel/block_attention.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>

#include "context_parallel/merge.h"

namespace meshtrain {

namespace {

at::Tensor queries_of(const at::Tensor& tensor, const Block& block) {
  return tensor.narrow(0, block.first_row, block.num_rows).narrow(2, block.query, block.num_queries);
}

at::Tensor keys_of(const at::Tensor& tensor, const Block& block) {
  return tensor.narrow(0, block.first_row, block.num_rows).narrow(2, block.key, block.num_keys);
}

}  // namespace

void RunningAttention::add(const Block& block, const at::Tensor& keys, const at::Tensor& values) {
  if (!block.causal && !complete()) {
    throw std::logic_error("attention: a rectangle of queries from " + std::to_string(block.query) +
                           " on comes before all queries have met their own keys");
  }
  Attended part = attend(queries_of(q_, block), keys_of(keys, block), keys_of(values, block), block.causal, scale_);
  block.causal ? start(block, std::move(part)) : merge(block, part);
}

void RunningAttention::start(const Block& block, Attended part) {
  const bool whole = block.num_rows == q_.size(0) && block.num_queries == q_.size(2);
  num_started_ += block.num_rows * block.num_queries;
  if (whole) {
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

void RunningAttention::merge(const Block& block, const Attended& part) {
  const at::ScalarType dtype = part.lse.scalar_type();
  if (merged_.out.scalar_type() != dtype) merged_.out = merged_.out.to(dtype);
  meshtrain::merge({queries_of(merged_.out, block), queries_of(merged_.lse, block)}, part);
}

Attended RunningAttention::finish() {
  if (!complete()) {
    throw std::logic_error("attention: " + std::to_string(q_.size(0) * q_.size(2) - num_started_) + " of " +
                           std::to_string(q_.size(0) * q_.size(2)) + " queries have had no key");
  }
  return {merged_.out.to(q_.scalar_type()), std::move(merged_.lse)};
}

RunningGradients::RunningGradients(const at::Tensor& grad_out, const at::Tensor& q, const Attended& attended,
                                   double scale)
    : grad_out_(grad_out),
      q_(q),
      attended_(attended),
      scale_(scale),
      dq_(empty_by_position(q, attended.lse.scalar_type()).zero_()) {}

AttentionGradients RunningGradients::compute(const Block& block, const at::Tensor& keys, const at::Tensor& values) {
  AttentionGradients gradients =
      attend_backward(queries_of(grad_out_, block), queries_of(q_, block), keys_of(keys, block), keys_of(values, block),
                      {queries_of(attended_.out, block), queries_of(attended_.lse, block)}, block.causal, scale_);
  queries_of(dq_, block).add_(gradients.q);
  return gradients;
}

void RunningGradients::add(const Block& block, const at::Tensor& keys, const at::Tensor& values,
                           const at::Tensor& key_gradients, const at::Tensor& value_gradients) {
  const AttentionGradients gradients = compute(block, keys, values);
  keys_of(key_gradients, block).add_(gradients.k);
  keys_of(value_gradients, block).add_(gradients.v);
}

}  // namespace meshtrain

#include "context_parallel/head_exchange.h"

#include "context_parallel/wire_order.h"
#include "mesh/device/aten.h"

namespace meshtrain {

namespace {

/// The number of heads of each tensor, and of all, on one rank.
struct HeadCounts {
  std::vector<int64_t> each;
  int64_t all = 0;
};

HeadCounts count_heads(const std::vector<at::Tensor>& tensors, int64_t ranks) {
  HeadCounts counts;
  for (const at::Tensor& tensor : tensors) {
    counts.each.push_back(tensor.size(1) / ranks);
    counts.all += counts.each.back();
  }
  return counts;
}

}  // namespace

std::vector<at::Tensor> sequence_to_heads(const std::vector<at::Tensor>& tensors, const SequenceLayout& layout,
                                          const Group& group) {
  const int64_t c = group.size(), s = layout.local_length(), B = tensors[0].size(0), D = tensors[0].size(3);
  const HeadCounts heads = count_heads(tensors, c);
  const at::Tensor sent = at::empty({c, s, B, heads.all, D}, tensors[0].options());  // ordered by receiving rank
  int64_t first = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor by_rank = tensors[i].unflatten(1, {c, heads.each[i]});  // [B, c, h, s, D]
    sent.narrow(3, first, heads.each[i]).copy_(by_rank.permute({1, 3, 0, 2, 4}));
    first += heads.each[i];
  }
  at::Tensor received = at::empty_like(sent);  // ordered by the rank that held the positions
  group.all_to_all(received, sent).wait();
  const at::Tensor ordered = by_position(received.flatten(0, 1), layout);  // [S, B, heads, D]
  std::vector<at::Tensor> results;
  for (const at::Tensor& part : ordered.split_with_sizes(heads.each, 2)) results.push_back(part.permute({1, 2, 0, 3}));
  return results;
}

std::vector<at::Tensor> heads_to_sequence(const std::vector<at::Tensor>& tensors, const SequenceLayout& layout,
                                          const Group& group) {
  const int64_t c = group.size(), s = layout.local_length(), S = layout.sequence_length();
  const int64_t B = tensors[0].size(0), D = tensors[0].size(3);
  const HeadCounts heads = count_heads(tensors, 1);
  const at::Tensor sent = at::empty({S, B, heads.all, D}, tensors[0].options());  // ordered by receiving rank
  int64_t first = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor part = sent.narrow(2, first, heads.each[i]), by_sequence = tensors[i].permute({2, 0, 1, 3});
    for (const WireChunk& wire : wire_order(layout)) {
      part.narrow(0, wire.offset, wire.chunk.size).copy_(by_sequence.narrow(0, wire.chunk.start, wire.chunk.size));
    }
    first += heads.each[i];
  }
  at::Tensor received = at::empty_like(sent);
  group.all_to_all(received, sent).wait();
  const at::Tensor by_rank = received.unflatten(0, {c, s});  // ordered by the rank that held the heads
  std::vector<at::Tensor> results;
  for (const at::Tensor& part : by_rank.split_with_sizes(heads.each, 3)) {
    const at::Tensor joined = part.permute({2, 1, 0, 3, 4}).contiguous().flatten(2, 3);  // [B, s, c h, D]
    results.push_back(joined.transpose(1, 2));
  }
  return results;
}

}  // namespace meshtrain

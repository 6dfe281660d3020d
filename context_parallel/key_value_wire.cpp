#include "context_parallel/key_value_wire.h"

#include <algorithm>

#include "mesh/device/aten.h"

namespace meshtrain {

KeyValues KeyValues::empty(int64_t num_positions, const at::Tensor& like, at::ScalarType dtype) {
  return {at::empty({num_positions, like.size(0), 2, like.size(1), like.size(3)}, like.options().dtype(dtype))};
}

KeyValues KeyValues::zeros(int64_t num_positions, const at::Tensor& like, at::ScalarType dtype) {
  return {at::zeros({num_positions, like.size(0), 2, like.size(1), like.size(3)}, like.options().dtype(dtype))};
}

KeyValues KeyValues::pack(const at::Tensor& k, const at::Tensor& v) {
  KeyValues packed = empty(k.size(2), k, k.scalar_type());
  packed.keys().copy_(k);
  packed.values().copy_(v);
  return packed;
}

KeyValueGather::KeyValueGather(const at::Tensor& k, const at::Tensor& v, const SequenceLayout& layout,
                               const Group& group)
    : layout_(layout), wire_(KeyValues::empty(layout.sequence_length(), k, k.scalar_type())) {
  const int64_t s = layout.local_length();
  const KeyValues own{wire_.packed.narrow(0, group.rank() * s, s)};
  own.keys().copy_(k);
  own.values().copy_(v);
  work_ = group.all_gather(wire_.packed, own.packed);
}

KeyValues KeyValueGather::wait() {
  work_.wait();
  KeyValues ordered{by_position(wire_.packed, layout_)};
  wire_ = {};
  return ordered;
}

KeyValueGradients::KeyValueGradients(const at::Tensor& k, at::ScalarType dtype, const SequenceLayout& layout)
    : order_(wire_order(layout)),
      wire_(KeyValues::zeros(layout.sequence_length(), k, dtype)),
      local_(KeyValues::empty(layout.local_length(), k, dtype)) {}

void KeyValueGradients::add(int64_t first_row, int64_t position, const at::Tensor& dk, const at::Tensor& dv) {
  const int64_t end = position + dk.size(2);
  for (const auto& [chunk, offset] : order_) {
    const int64_t from = std::max(position, chunk.start), to = std::min(end, chunk.start + chunk.size);
    if (from >= to) continue;
    const KeyValues target{
        wire_.packed.narrow(0, offset + from - chunk.start, to - from).narrow(1, first_row, dk.size(0))};
    target.keys().add_(dk.narrow(2, from - position, to - from));
    target.values().add_(dv.narrow(2, from - position, to - from));
  }
}

void KeyValueGradients::send(const Group& group) {
  work_ = group.reduce_scatter(local_.packed, wire_.packed);
}

KeyValues KeyValueGradients::wait() {
  work_.wait();
  wire_ = {};
  return local_;
}

}  // namespace meshtrain

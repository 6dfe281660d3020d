#include "runtime/training/optimizer/shard_tensor.h"

#include <ATen/ops/as_strided.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace meshtrain {
namespace {

std::vector<int64_t> strides_of(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];
  return strides;
}

/// Returns the box `local` of a parameter's local tensor, without padding. The tensor's first element is `first` in
/// `values`.
std::optional<ShardBox> box_in(const Parameter& parameter, const Box& local, const at::Tensor& values, int64_t first) {
  const Box kept{std::vector<int64_t>(local.size.size(), 0), parameter.box.size};
  std::optional<Box> box = intersect(local, kept);
  if (!box) return std::nullopt;
  const std::vector<int64_t> strides = strides_of(parameter.shape);
  int64_t offset = values.storage_offset() + first;
  for (size_t dim = 0; dim < strides.size(); ++dim) {
    offset += box->start[dim] * strides[dim];
    box->start[dim] += parameter.box.start[dim];
  }
  return ShardBox{&parameter, *box, values.as_strided(box->size, strides, offset)};
}

}  // namespace

std::vector<ShardBox> shard_boxes(const ShardTensor& numbers, Range wanted) {
  const int64_t shard = numbers.buffer->shard().offset;
  const int64_t begin = shard + std::max(numbers.range.offset, wanted.offset);
  const int64_t end = shard + std::min(numbers.range.offset + numbers.range.numel, wanted.offset + wanted.numel);
  std::vector<ShardBox> boxes;
  for (const Segment& segment : numbers.buffer->segments()) {
    const int64_t from = std::max(begin, segment.offset) - segment.offset;
    const int64_t to = std::min(end, segment.offset + segment.numel) - segment.offset;
    const int64_t first = segment.offset - shard - numbers.range.offset;  // of the segment, perhaps before the values
    for (const Box& local : boxes_of(segment.parameter->shape, from, to)) {
      std::optional<ShardBox> box = box_in(*segment.parameter, local, numbers.values, first);
      if (box) boxes.push_back(std::move(*box));
    }
  }
  return boxes;
}

}  // namespace meshtrain

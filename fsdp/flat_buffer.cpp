#include "fsdp/flat_buffer.h"

#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <utility>

#include "fsdp/lent_memory.h"

namespace meshtrain {
namespace {

constexpr int64_t kAlignmentBytes = 256;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// 0: partial gradient, 1: whole, 2: cut along an axis.
int region(const Parameter& parameter) {
  if (!parameter.partial_over.empty()) return 0;
  return parameter.sharded_over.empty() ? 1 : 2;
}

}  // namespace

FlatBuffer::FlatBuffer(std::vector<Parameter*> parameters, const Sharding& sharding) : sharding_(sharding) {
  std::stable_sort(parameters.begin(), parameters.end(),
                   [](const Parameter* a, const Parameter* b) { return region(*a) < region(*b); });
  const at::TensorOptions options = parameters.front()->tensor.options();
  const int64_t alignment = kAlignmentBytes / static_cast<int64_t>(options.dtype().itemsize());

  int64_t end = 0;
  for (Parameter* parameter : parameters) {
    // What it follows may be in another buffer, frozen; then it begins where any parameter does.
    const bool follows =
        parameter->follows_previous && !segments_.empty() && region(*segments_.back().parameter) == region(*parameter);
    const int64_t offset = follows ? end : round_up(end, alignment);
    segments_.push_back({parameter, offset, c10::multiply_integers(parameter->shape)});
    end = offset + segments_.back().numel;
    if (region(*parameter) == 0) partial_numel_ = end;
    if (region(*parameter) <= 1) whole_numel_ = end;
  }
  const int64_t total = round_up(round_up(end, alignment), alignment * sharding.num_shards);
  const int64_t share = total / sharding.num_shards, first = share * sharding.index;

  const bool trainable = parameters.front()->tensor.requires_grad();
  values_ = at::zeros({total}, options.requires_grad(false));
  for (const Segment& segment : segments_) place(*segment.parameter, values_, segment.offset);
  const at::ScalarType dtype = values_.scalar_type();
  const at::ScalarType kept = trainable ? sharding.shard_dtype.value_or(dtype) : dtype;
  shard_values_ = values_.narrow(0, first, share);
  if (!sharding.whole_parameters || kept != dtype) {
    shard_values_ = shard_values_.to(kept, /*non_blocking=*/false, /*copy=*/true);
  }
  if (!sharding.whole_parameters) take_memory(values_);
  if (!trainable) return;
  gradients_ = at::zeros({total}, values_.options().dtype(sharding.gradient_dtype.value_or(dtype)));
  for (const Segment& segment : segments_) {
    segment.parameter->tensor.mutable_grad() =
        gradients_.narrow(0, segment.offset, segment.numel).view(segment.parameter->shape);
  }
  shard_gradients_ = gradients_.narrow(0, first, share);
  if (!sharding.whole_gradients || gradients_.scalar_type() != kept) {
    shard_gradients_ = at::zeros({share}, shard_values_.options());
  }
  if (!sharding.whole_gradients) take_memory(gradients_);
}

Range FlatBuffer::in_shard(Range range) const {
  const Range own = shard();
  const int64_t begin = std::clamp<int64_t>(range.offset - own.offset, 0, own.numel);
  const int64_t end = std::clamp<int64_t>(range.offset + range.numel - own.offset, 0, own.numel);
  return {begin, end - begin};
}

std::vector<FlatBuffer> make_flat_buffers(const std::vector<Parameter*>& parameters, const Sharding& sharding) {
  std::map<std::pair<bool, at::ScalarType>, std::vector<Parameter*>> kinds;
  for (Parameter* parameter : parameters) {
    kinds[{parameter->tensor.requires_grad(), parameter->tensor.scalar_type()}].push_back(parameter);
  }
  std::vector<FlatBuffer> buffers;
  for (const auto& [kind, members] : kinds) buffers.emplace_back(members, sharding);
  return buffers;
}

}  // namespace meshtrain

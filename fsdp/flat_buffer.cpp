#include "fsdp/flat_buffer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <utility>

#include "fsdp/lent_memory.h"
#include "mesh/device/gradient_state.h"

namespace meshtrain {
namespace {

constexpr int64_t kAlignmentBytes = 256;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns the region of the buffer for `parameter`: 0 with a partial gradient, 1 full on every rank, 2 cut along an
/// axis.
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
    // The parameter before it may be in another buffer, frozen; then this one is aligned as any other.
    const bool follows =
        parameter->follows_previous && !segments_.empty() && region(*segments_.back().parameter) == region(*parameter);
    const int64_t offset = follows ? end : round_up(end, alignment);
    segments_.push_back({parameter, offset, c10::multiply_integers(parameter->shape)});
    end = offset + segments_.back().numel;
    if (region(*parameter) == 0) partial_numel_ = end;
    if (region(*parameter) <= 1) full_numel_ = end;
  }
  const int64_t total = round_up(round_up(end, alignment), alignment * sharding.num_shards);
  share_ = total / sharding.num_shards;

  values_ = without_memory(total, options.requires_grad(false));
  const bool trainable = parameters.front()->tensor.requires_grad();
  const at::ScalarType dtype = values_.scalar_type();
  shard_dtype_ = sharding.shard_dtype.value_or(dtype);
  if (!trainable) {
    if (sharding.frozen_dtype) shard_dtype_ = at::promoteTypes(*sharding.frozen_dtype, dtype);
    return;
  }
  gradients_ = without_memory(total, values_.options().dtype(sharding.gradient_dtype.value_or(dtype)));
  shard_gradients_ = sharding.full_gradients && gradients_.scalar_type() == shard_dtype_ && !is_offloaded()
                         ? gradients_of_shard()
                         : without_memory(share_, values_.options().dtype(shard_dtype_));
}

void FlatBuffer::settle(bool values_stay) {
  const at::NoGradGuard no_grad;
  values_stay_ = values_stay;
  const bool same_dtype = shard_dtype_ == values_.scalar_type();
  shard_values_ = values_stay && same_dtype && !is_offloaded()
                      ? values_of_shard()
                      : sharding_.memory.zeros(share_, values_.options().dtype(shard_dtype_));
  if (is_offloaded() && !same_dtype) rounded_ = sharding_.memory.zeros(share_, values_.options());
  if (trainable() && keeps_gradients_apart() && sharding_.memory.is_apart_from(values_.device())) {
    shard_gradients_ = sharding_.memory.zeros(share_, shard_gradients_.options());
  }
  for (const Segment& segment : segments_) {
    at::Tensor& leaf = segment.parameter->tensor;
    const Range kept = in_shard({segment.offset, segment.numel});
    if (leaf.numel() == segment.numel && kept.numel > 0) {
      const int64_t first = shard().offset + kept.offset - segment.offset;
      shard_values_.narrow(0, kept.offset, kept.numel).copy_(leaf.flatten().narrow(0, first, kept.numel));
    }
    leaf.set_(at::empty({0}, values_.options()));
    bind(*segment.parameter, values_, segment.offset);
    if (trainable()) {
      leaf.mutable_grad() = gradients_.narrow(0, segment.offset, segment.numel).view(segment.parameter->shape);
    }
  }
  set_aside(shard_values_);
}

template <class IsKept>
void FlatBuffer::zero_gradients_but(IsKept is_kept) {
  int64_t begin = 0;  // of the next range to set to zero
  const auto zero_until = [&](int64_t end) {
    if (end > begin) gradients_.narrow(0, begin, end - begin).zero_();
  };
  for (const Segment& segment : segments_) {
    if (!is_kept(segment)) continue;
    zero_until(segment.offset);
    begin = segment.offset + segment.numel;
  }
  zero_until(numel());
}

void FlatBuffer::forget_gradients() {
  zero_gradients_but([](const Segment& segment) {
    GradientState* const state = GradientState::of(segment.parameter->tensor);
    if (state == nullptr) return false;
    state->set_written(!segment.parameter->written_by_layer);
    return !state->written();
  });
}

void FlatBuffer::complete_gradients() {
  const auto stays = [](const Segment& segment) {
    const GradientState* const state = GradientState::of(segment.parameter->tensor);
    return state == nullptr || state->written() || state->deferred();
  };
  if (std::all_of(segments_.begin(), segments_.end(), stays)) return;
  zero_gradients_but(stays);
  for (const Segment& segment : segments_) {
    if (!stays(segment)) GradientState::of(segment.parameter->tensor)->set_written(true);
  }
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

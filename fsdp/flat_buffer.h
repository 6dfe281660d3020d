#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "fsdp/shard_memory.h"
#include "mesh/parameter.h"

namespace meshtrain {

/// Where one parameter lies in a flat buffer, in elements.
struct Segment {
  Parameter* parameter;
  int64_t offset;
  int64_t numel;
};

/// How flat buffers are cut over ranks, and what of them stays on each.
struct Sharding {
  int64_t num_shards = 1;
  int64_t index = 0;                                  ///< which shard this rank keeps
  bool whole_gradients = true;                        ///< have memory for good; else their shards are kept apart
  std::optional<at::ScalarType> shard_dtype = {};     ///< of what trainable shards are kept in; none: the parameters'
  std::optional<at::ScalarType> gradient_dtype = {};  ///< gradients are added up and reduced in; none: the parameters'
  ShardMemory memory = {};                            ///< of what a rank keeps apart from whole tensors
};

/// Parameters of one dtype and device, all trainable or all frozen, laid end to end in one buffer. Their tensors are
/// views of `values()`, their gradients views of `gradients()`, so collectives work on whole buffers in place, and the
/// segments say whose elements are whose. Of both this rank keeps a shard, one of `num_shards` equal ranges, on which
/// optimizer and norm work.
///
/// Order: [gradients partial over an axis | whole on every rank | cut along an axis], so that what is summed or
/// counted together is one range. Parameters start at 256 bytes, except those that follow their predecessor directly;
/// the end is padded to a multiple of the number of shards. Padding is zero and stays zero, that of gradients() from
/// forget_gradients() on.
class FlatBuffer {
 public:
  /// Where everything lies; nothing has memory yet. `parameters` stay where they are as long as the buffer lives.
  FlatBuffer(std::vector<Parameter*> parameters, const Sharding& sharding);

  /// Parameters and gradients have their storage from here on, views of values() and gradients(); what parameters had
  /// is in the shard, of which every rank writes its own. Whatever has memory for good must have it by now.
  /// `values_stay`: values() do, so that a shard of their dtype is a slice of them.
  void settle(bool values_stay);

  const std::vector<Segment>& segments() const { return segments_; }
  int64_t numel() const { return values_.numel(); }
  bool trainable() const { return gradients_.defined(); }

  /// [numel]. Has memory while the parameters are gathered.
  const at::Tensor& values() const { return values_; }
  /// [numel], perhaps of another dtype; undefined when frozen. Has memory during the backward of its unit.
  const at::Tensor& gradients() const { return gradients_; }

  /// Makes gradients() mean zero, at the least cost: those that a layer writes itself (Parameter::written_by_layer)
  /// become unwritten (GradientState), all others and padding are set to zero.
  void forget_gradients();
  /// Sets to zero what is still unwritten of gradients(): parameters that had no backward.
  void complete_gradients();

  /// This rank's elements.
  Range shard() const { return {sharding_.index * share_, share_}; }
  /// [shard().numel]: what this rank keeps; part of values() where these have memory for good and the same dtype.
  const at::Tensor& shard_values() const { return shard_values_; }
  /// [shard().numel] of the dtype of shard_values(), reduced after a backward; part of gradients() where these are
  /// always whole and of the same dtype. Undefined when frozen.
  const at::Tensor& shard_gradients() const { return shard_gradients_; }
  /// [shard().numel]: what units compute with of shard_values(), rounded to the parameters' dtype, where that has
  /// memory for good; else undefined, and each gather rounds. Whoever changes shard_values() may write it too
  /// (ShardChange).
  at::Tensor rounded_shard() const {
    return values_stay_ && shard_dtype_ != values_.scalar_type() ? values_of_shard() : at::Tensor();
  }
  bool keeps_values_apart() const { return !shard_values_.is_alias_of(values_); }
  bool keeps_gradients_apart() const { return !shard_gradients_.is_alias_of(gradients_); }
  /// What of `range` of the buffer this rank keeps: a range of its shard, perhaps empty.
  Range in_shard(Range range) const;
  /// This rank's shard within values() and gradients().
  at::Tensor values_of_shard() const { return values_.narrow(0, shard().offset, shard().numel); }
  at::Tensor gradients_of_shard() const { return gradients_.narrow(0, shard().offset, shard().numel); }

  /// The first elements: parameters whose gradients must still be summed over their `partial_over` axis.
  int64_t partial_numel() const { return partial_numel_; }
  /// The first elements: parameters that every rank of the model-parallel axes holds whole, partial ones included.
  int64_t whole_numel() const { return whole_numel_; }

 private:
  /// Sets gradients() to zero, but for the segments for which `kept(segment)` is true: each range in one call.
  template <class Kept>
  void zero_gradients_but(Kept kept);

  Sharding sharding_;
  std::vector<Segment> segments_;
  int64_t share_ = 0;
  at::ScalarType shard_dtype_;
  bool values_stay_ = false;
  at::Tensor values_, shard_values_;
  at::Tensor gradients_, shard_gradients_;
  int64_t partial_numel_ = 0;
  int64_t whole_numel_ = 0;
};

/// One buffer for each kind (trainable or frozen, dtype) among `parameters`.
std::vector<FlatBuffer> make_flat_buffers(const std::vector<Parameter*>& parameters, const Sharding& sharding);

}  // namespace meshtrain

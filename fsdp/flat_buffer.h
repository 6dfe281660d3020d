#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "fsdp/shard_memory.h"
#include "mesh/parameter.h"

namespace meshtrain {

/// The elements of one parameter in a flat buffer.
struct Segment {
  Parameter* parameter;
  int64_t offset;
  int64_t numel;
};

/// The division of flat buffers over ranks, and the memory of each rank's part.
struct Sharding {
  int64_t num_shards = 1;
  int64_t index = 0;           ///< which shard this rank keeps
  bool full_gradients = true;  ///< true: they have permanent memory; false: their shards have memory of their own
  std::optional<at::ScalarType> shard_dtype = {};     ///< of shards; none: the parameters'
  std::optional<at::ScalarType> frozen_dtype = {};    ///< of frozen shards; none: shard_dtype
  std::optional<at::ScalarType> gradient_dtype = {};  ///< of gradients until they are reduced; none: the parameters'
  ShardMemory memory = {};                            ///< of shards that are not slices of full tensors
  bool is_copy = false;                               ///< UnitSpec::is_copy
};

/// Parameters of one dtype and device, all trainable or all frozen, laid end to end in one buffer. Their tensors are
/// views of `values()`, their gradients views of `gradients()`, so collectives work on full buffers in place, and the
/// segments name the elements of each parameter. This rank keeps a shard of both, one of `num_shards` equal ranges, on
/// which optimizer and norm work.
///
/// Order: [gradients partial over an axis | full on every rank | cut along an axis], so that elements that are summed
/// or counted together form one range. Parameters start at 256 bytes, except those that follow their predecessor
/// directly; the end is padded to a multiple of the number of shards. Padding is zero and stays zero, that of
/// gradients() from forget_gradients() on.
class FlatBuffer {
 public:
  /// Computes offsets; nothing has memory yet. `parameters` must outlive the buffer and not move.
  FlatBuffer(std::vector<Parameter*> parameters, const Sharding& sharding);

  /// Binds parameters and gradients to values() and gradients(), and copies this rank's part of the parameters' values
  /// to its shard. Tensors with permanent memory must have it by now. `values_stay`: values() have permanent memory, so
  /// that a shard of their dtype is a slice of them.
  void settle(bool values_stay);

  const std::vector<Segment>& segments() const { return segments_; }
  int64_t numel() const { return values_.numel(); }
  bool trainable() const { return gradients_.defined(); }
  /// Returns true when another stage of a pipeline owns the same parameters.
  bool is_copy() const { return sharding_.is_copy; }

  /// [numel]. Has memory while the parameters are gathered.
  const at::Tensor& values() const { return values_; }
  /// [numel], perhaps of another dtype; undefined when frozen. Has memory during the backward of its unit.
  const at::Tensor& gradients() const { return gradients_; }

  /// Makes gradients() count as zero at the least cost: gradients that a layer writes itself
  /// (Parameter::written_by_layer) become unwritten (GradientState), all others and padding are set to zero.
  void forget_gradients();
  /// Sets the gradients that are still unwritten to zero, but not deferred ones: those of parameters that had no
  /// backward.
  void complete_gradients();

  /// Returns this rank's elements.
  Range shard() const { return {sharding_.index * share_, share_}; }
  /// [shard().numel]: this rank's parameters; a slice of values() where these have permanent memory and the same dtype.
  const at::Tensor& shard_values() const { return shard_values_; }
  /// [shard().numel] of the dtype of shard_values(), reduced after a backward; part of gradients() where these are
  /// always full and of the same dtype. Undefined when frozen.
  const at::Tensor& shard_gradients() const { return shard_gradients_; }
  /// [shard().numel]: shard_values() rounded to the parameters' dtype, in which units compute. Undefined when the
  /// rounded values have no permanent memory besides shard_values(); each gather rounds then. An optimizer that changes
  /// shard_values() may write the rounded values too (ShardChange).
  at::Tensor rounded_shard() const {
    if (is_offloaded()) return rounded_;
    return values_stay_ && shard_dtype_ != values_.scalar_type() ? values_of_shard() : at::Tensor();
  }
  /// Returns true when shards are not in the memory of the device that computes (ShardMemory::leaves()).
  bool is_offloaded() const { return sharding_.memory.leaves(values_.device()); }
  bool keeps_values_apart() const { return !shard_values_.is_alias_of(values_); }
  bool keeps_gradients_apart() const { return !shard_gradients_.is_alias_of(gradients_); }
  /// Returns the part of `range` of the buffer that this rank keeps, as a range of its shard, perhaps empty.
  Range in_shard(Range range) const;
  /// Returns this rank's slice of values() and gradients().
  at::Tensor values_of_shard() const { return values_.narrow(0, shard().offset, shard().numel); }
  at::Tensor gradients_of_shard() const { return gradients_.narrow(0, shard().offset, shard().numel); }

  /// Returns the number of leading elements whose gradients must still be summed over their `partial_over` axis.
  int64_t partial_numel() const { return partial_numel_; }
  /// Returns the number of leading elements whose parameters every model-parallel rank holds in full, partial ones
  /// included.
  int64_t full_numel() const { return full_numel_; }

 private:
  /// Sets gradients() to zero, except segments for which `kept(segment)` is true: each range in one call.
  template <class IsKept>
  void zero_gradients_but(IsKept is_kept);

  Sharding sharding_;
  std::vector<Segment> segments_;
  int64_t share_ = 0;
  at::ScalarType shard_dtype_;
  bool values_stay_ = false;
  at::Tensor values_, shard_values_;
  at::Tensor rounded_;  // of offloaded shards whose dtype differs from the parameters'
  at::Tensor gradients_, shard_gradients_;
  int64_t partial_numel_ = 0;
  int64_t full_numel_ = 0;
};

/// Returns one buffer for each kind (trainable or frozen, dtype) among `parameters`.
std::vector<FlatBuffer> make_flat_buffers(const std::vector<Parameter*>& parameters, const Sharding& sharding);

}  // namespace meshtrain

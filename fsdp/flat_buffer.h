#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "mesh/parameter.h"

namespace meshtrain {

/// Where one parameter lies in a flat buffer, in elements.
struct Segment {
  Parameter* parameter;
  int64_t offset;
  int64_t numel;
};

/// Parameters of one dtype and device, all trainable or all frozen, laid end to end in one buffer. Their tensors are
/// views of `values()`, their gradients views of `gradients()`, so collectives, optimizer and norm work on whole
/// buffers, and the segments say whose elements are whose.
///
/// Order: [gradients partial over an axis | whole on every rank | cut along an axis], so that what is summed or
/// counted together is one range. Parameters start at 256 bytes, except those that follow their predecessor directly;
/// the end is padded to a multiple of the number of shards. Padding is zero and stays zero.
class FlatBuffer {
 public:
  /// `parameters` stay where they are as long as the buffer lives; values they already have are kept.
  FlatBuffer(std::vector<Parameter*> parameters, int64_t num_shards);

  const std::vector<Segment>& segments() const { return segments_; }
  int64_t numel() const { return values_.numel(); }
  bool trainable() const { return gradients_.defined(); }

  /// [numel]
  const at::Tensor& values() const { return values_; }
  /// [numel]; undefined when frozen.
  const at::Tensor& gradients() const { return gradients_; }

  /// The first elements: parameters whose gradients must still be summed over their `partial_over` axis.
  int64_t partial_numel() const { return partial_numel_; }
  /// The first elements: parameters that every rank of the model-parallel axes holds whole, partial ones included.
  int64_t whole_numel() const { return whole_numel_; }

 private:
  std::vector<Segment> segments_;
  at::Tensor values_;
  at::Tensor gradients_;
  int64_t partial_numel_ = 0;
  int64_t whole_numel_ = 0;
};

/// One buffer for each kind (trainable or frozen, dtype) among `parameters`.
std::vector<FlatBuffer> make_flat_buffers(const std::vector<Parameter*>& parameters, int64_t num_shards);

}  // namespace meshtrain

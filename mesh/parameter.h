#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "mesh/box.h"
#include "mesh/group.h"

namespace meshtrain {

/// The distribution from which the elements of a parameter are first drawn.
struct Initializer {
  enum class Kind { Zeros, Ones, Normal, Uniform };
  Kind kind = Kind::Zeros;
  double std = 0;    ///< Normal: standard deviation about 0
  double bound = 0;  ///< Uniform: values lie in (-bound, bound]
};

/// A trainable tensor of the model and its distribution on the mesh. Layers declare it; the owner of the storage
/// (fsdp's flat buffers) binds `tensor` to memory.
struct Parameter {
  std::string name;                   ///< as in a Hugging Face checkpoint: "model.layers.0.mlp.up_proj.weight"
  at::Tensor tensor;                  ///< the local leaf, [shape]; an empty leaf until bind()
  std::vector<int64_t> shape;         ///< local extents, padding included
  std::vector<int64_t> global_shape;  ///< extents of the full tensor, without padding
  Box box;                            ///< the local part of the global tensor; beyond it `tensor` is padding (zeros)
  Initializer initializer;
  std::string sharded_over;  ///< the axis that cuts the tensor ("tp"); empty: every rank holds all of it
  int64_t sharded_dim = 0;   ///< the dim that is cut
  std::string partial_over;  ///< the axis over whose ranks the local gradients must still be summed
  bool of_tokens = false;    ///< a matrix whose rows belong to tokens of the vocabulary: embedding, head
  int64_t num_matrices = 1;  ///< of experts: the matrices of equal shape in the local part of three dims, one after
                             ///< the other; 0: the tensor of two dims is a stack of vectors, the experts' biases
  bool follows_previous = false;  ///< lies in memory directly after the parameter before it (q, k, v)
  bool written_by_layer = false;  ///< true: the first layer that computes a gradient of the tensor writes it in full
                                  ///< (tensor_parallel/products/leaf_gradient.h), so the buffer needs no zeros before.
                                  ///< Only layers that do so may use the tensor

  /// Returns the part of the local tensor that is not padding: a view.
  at::Tensor valid() const;
};

/// Returns a parameter that every rank holds in full.
Parameter full_parameter(std::string name, std::vector<int64_t> shape, Initializer initializer,
                         const at::TensorOptions& options);

/// Returns a parameter of global `shape` whose dim `dim` is cut evenly over `group`, the ranks along an axis, rounded
/// up: the last ranks are padded.
Parameter sharded_parameter(std::string name, std::vector<int64_t> shape, int64_t dim, const Group& group,
                            Initializer initializer, const at::TensorOptions& options);

/// Binds `parameter.tensor` to memory: a view of `flat` from element `offset` on, a leaf with a version counter of its
/// own, so that `flat` may be refilled between forward and backward. Keeps the values that the leaf already has. Throws
/// std::invalid_argument when dtype, device or size do not fit.
void bind(Parameter& parameter, const at::Tensor& flat, int64_t offset);

}  // namespace meshtrain

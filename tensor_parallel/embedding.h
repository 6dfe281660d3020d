#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mesh/parameter.h"
#include "tensor_parallel/adapter.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// A lookup of rows in a table [V, M] whose rows are cut over tp, rounded up: the last ranks may hold fewer, or none.
class VocabParallelEmbedding {
 public:
  /// Declares "<name>.weight" [vocab_size, hidden_size], and the factors of its adapter, without storage.
  VocabParallelEmbedding(const TensorParallel& tp, const std::string& name, int64_t vocab_size, int64_t hidden_size,
                         Initializer initializer, const at::TensorOptions& options,
                         const std::optional<AdapterOptions>& adapter = {});

  /// Looks up ids, int64 [T], the same on every tp rank, each below vocab_size. Returns [T/tp, M] under sequence
  /// parallel, otherwise [T, M]. Every tp rank must call it, and its backward. Differentiable once. If the weight has a
  /// gradient buffer, add_embedding_gradient() adds the gradient there, with the same bits in every run. The adapter's
  /// term is reduced with the rows; the gradient of its B is this rank's part of a sum over tp.
  at::Tensor forward(const at::Tensor& ids) const;

  /// Lets lookups of `id` give the weight and A no gradient, as padding_idx of torch.nn.Embedding. Call before
  /// forward().
  void freeze_row(int64_t id) { frozen_row_ = id; }

  Parameter& weight() { return weight_; }
  const Parameter& weight() const { return weight_; }
  /// Returns the weight, then A and B of the adapter.
  std::vector<Parameter*> parameters();

 private:
  TensorParallel tp_;
  Parameter weight_;
  std::vector<Adapter> adapter_;  ///< one or none
  std::optional<int64_t> frozen_row_;
};

}  // namespace meshtrain

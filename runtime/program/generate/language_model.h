#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/training/transformer/sharded_model.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// A model that predicts the next token. It has no gradients, and no memory for them. A row is the tp ranks at one
/// coordinate of dp: they hold parts of the matrices and compute one sequence together. Different rows compute
/// different sequences. Their ranks hold shards of the weights (full_shard), and gather each unit while it computes.
class LanguageModel {
 public:
  struct Options {
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    Offload offload = Offload::None;  ///< of the shards
    std::filesystem::path offload_folder = {};
  };

  /// `read` fills this rank's part of a parameter; it must not issue collectives. Every rank of the mesh must construct
  /// it. Throws InputError on all ranks when the mesh cuts over cp, or when tp does not divide the model's heads. When
  /// `read` throws on any rank, throws that error on all ranks.
  LanguageModel(const ModelShape& shape, const DeviceMesh& mesh, const Options& options,
                const std::function<void(const Parameter&)>& read);

  /// Makes an empty cache for `capacity` positions.
  KeyValueCache make_cache(int64_t capacity) const;

  /// Runs one or more `ids` through the model; they follow the positions in `cache`. Returns the logits of the next
  /// token. Every rank of the row must call it, with the same ids. All other rows must call next() or wait().
  VocabularyLogits next(const std::vector<int64_t>& ids, KeyValueCache& cache);
  /// Gives other rows this rank's shards for one next(). Every rank of a row that has nothing to compute must call it
  /// when other rows call next(); otherwise their calls never return.
  void wait() { model_->gather_only(); }

  const ModelShape& shape() const { return shape_; }
  /// Returns the ranks, one of each row, that hold shards of the same parts: dp.
  const Group& rows() const { return rows_; }
  ShardedModel& model() { return *model_; }

 private:
  ModelShape shape_;
  Group rows_;
  int64_t num_parts_;  // ranks of tp
  at::TensorOptions options_;
  std::unique_ptr<ShardedModel> model_;
};

/// Throws InputError when `layout` cuts over cp.
void check_generating_mesh(const MeshLayout& layout);

}  // namespace meshtrain

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/training/transformer/sharded_model.h"

namespace meshtrain {

/// A model that predicts the next token, sharded over the tp axis of a mesh. It has no gradients, and no memory for
/// them.
class LanguageModel {
 public:
  /// `read` fills this rank's part of a parameter; it must not issue collectives. Every rank of the mesh must construct
  /// it. Throws InputError, on all ranks alike, when the mesh has another axis than tp, when tp does not divide the
  /// model's heads, and what `read` throws on any of them.
  LanguageModel(const ModelShape& shape, const DeviceMesh& mesh, at::ScalarType dtype,
                const std::function<void(const Parameter&)>& read, at::Device device = at::kCPU);

  /// Makes an empty cache for `capacity` positions.
  KeyValueCache make_cache(int64_t capacity) const;

  /// Runs one or more `ids` through the model; they follow the positions in `cache`. Returns the logits of the next
  /// token. Every tp rank must call it, with the same ids.
  VocabularyLogits next(const std::vector<int64_t>& ids, KeyValueCache& cache);

  const ModelShape& shape() const { return shape_; }
  ShardedModel& model() { return *model_; }

 private:
  ModelShape shape_;
  int64_t num_parts_;  // ranks of tp
  at::TensorOptions options_;
  std::unique_ptr<ShardedModel> model_;
};

}  // namespace meshtrain

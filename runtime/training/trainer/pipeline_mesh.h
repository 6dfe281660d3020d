#pragma once

#include <optional>

#include "mesh/device_mesh.h"
#include "runtime/training/trainer/pipeline_links.h"

namespace meshtrain {

/// A mesh with its pipelines. The ranks of one coordinate along pp hold the same stages and have a mesh of their own;
/// the ranks along pp pass activations and gradients on. A mesh without pp has one stage.
class PipelineMesh {
 public:
  /// Every rank of `mesh` must call it, before an error on one rank alone is possible. `mesh` must outlive this.
  /// `joins_ends`: false for a model whose first and last stage share no weight.
  explicit PipelineMesh(const DeviceMesh& mesh, bool joins_ends = true);

  const DeviceMesh& complete() const { return complete_; }
  /// Returns the mesh of the ranks that hold this rank's stages, without the axis pp.
  const DeviceMesh& stage() const { return stage_ ? *stage_ : complete_; }
  /// Returns the links of this rank's pipeline; null when one rank has all stages.
  const PipelineLinks* links() const { return links_ ? &*links_ : nullptr; }
  /// Returns the first and the last rank of this rank's pipeline on these two, this rank alone on those between and
  /// where ends are not joined.
  const Group& ends() const { return ends_; }

 private:
  const DeviceMesh& complete_;
  std::optional<DeviceMesh> stage_;
  std::optional<PipelineLinks> links_;
  Group ends_;
};

}  // namespace meshtrain

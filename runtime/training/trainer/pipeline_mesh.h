#pragma once

#include <optional>

#include "mesh/device_mesh.h"
#include "runtime/training/trainer/pipeline_links.h"

namespace meshtrain {

/// A mesh with its pipelines. Ranks with the same coordinate along pp hold the same stages and have their own mesh.
/// Ranks along pp pass activations and gradients on. A mesh without pp has one stage.
class PipelineMesh {
 public:
  /// Every rank of `mesh` must call this constructor, before any code that may throw on one rank alone. `mesh` must
  /// outlive this. `joins_ends`: false for a model whose first and last stage share no weight.
  explicit PipelineMesh(const DeviceMesh& mesh, bool joins_ends = true);

  const DeviceMesh& complete() const { return complete_; }
  /// Returns the mesh of the ranks that hold this rank's stages, without the axis pp.
  const DeviceMesh& stage() const { return stage_ ? *stage_ : complete_; }
  /// Returns the links of this rank's pipeline; null when one rank has all stages.
  const PipelineLinks* links() const { return links_ ? &*links_ : nullptr; }
  /// Returns the group of the first and the last rank of this rank's pipeline, on these two ranks. On the ranks between
  /// them, and on all ranks when ends are not joined, returns the group of this rank alone.
  const Group& ends() const { return ends_; }

 private:
  const DeviceMesh& complete_;
  std::optional<DeviceMesh> stage_;
  std::optional<PipelineLinks> links_;
  Group ends_;
};

}  // namespace meshtrain

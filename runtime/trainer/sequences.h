#pragma once

#include <optional>

#include "mesh/device_mesh.h"
#include "runtime/data/documents.h"
#include "runtime/model/parallelism.h"
#include "runtime/recipe/run_plan.h"

namespace meshtrain {

/// The Sequence of each micro-batch. Angles are computed here once and only picked by position afterwards. No function
/// communicates or reads a value from the device.
class Sequences {
 public:
  Sequences(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh, at::Device device);

  const SequenceLayout& layout() const { return undivided_.layout; }

  /// The Sequence of sequences with these documents, whose positions begin at 0 in each; empty: one document each,
  /// and nothing is computed. Others only where a source of the recipe has documents.
  Sequence of(const DocumentStarts& documents) const;

 private:
  Sequence undivided_;            // one document each
  std::optional<Rotary> angles_;  // of the positions 0 to S - 1, where a source has documents
};

}  // namespace meshtrain

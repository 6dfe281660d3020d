#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "runtime/training/trainer/model_part.h"
#include "runtime/training/trainer/pipeline_links.h"

namespace meshtrain {

/// The loss on tokens that are not trained on; the same on every rank.
struct HeldOutLoss {
  double mean = 0;
  int64_t num_counted = 0;
};

/// Returns the mean loss of the model of `parts` over all counted tokens of `count` micro-batches on each dp rank.
/// `next` returns this rank's micro-batches. The mean is exactly the sum of token losses over dp x cp divided by their
/// number. Records and changes nothing; call it between steps. Every rank of the mesh must call it. At least one label
/// must count, or the mean is not a number; Evaluation refuses files without a counted label. `ends`, unless empty, is
/// called before each micro-batch and must return the same on every rank. When `ends` returns true, this returns no
/// loss. `links`: those of the pipeline whose stages `parts` are (Pipeline::links).
std::optional<HeldOutLoss> held_out_loss(const ModelParts& parts, int64_t count,
                                         const std::function<MicroBatch()>& next,
                                         const std::function<bool()>& ends = {}, const PipelineLinks* links = nullptr);

}  // namespace meshtrain

#pragma once

#include <cstdint>
#include <string>

#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

// A batch whose size changes with the tokens seen so far, BatchOptions::phases. The size of a step depends on the
// samples before it alone, so a resumed run continues as it would have, on every mesh.

/// Returns the samples of the step that begins after `num_samples` samples.
int64_t global_batch_after(const BatchOptions& options, int64_t num_samples);

/// Returns the samples seen when `steps` more steps were made after `num_samples` samples, but at most `most`.
int64_t samples_after(const BatchOptions& options, int64_t num_samples, int64_t steps, int64_t most);

/// Describes the sizes of a run from its first step on: "global batch: 2 samples up to step 3 (48 tokens), then 4".
/// Empty when all steps are alike.
std::string describe_growth(const BatchOptions& options);

}  // namespace meshtrain

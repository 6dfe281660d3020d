#include "runtime/training/transformer/batch_growth.h"

#include <algorithm>

#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

/// Returns the number of steps of `phase` after `num_samples` samples; 0 for the last phase, which has no end.
int64_t steps_of(const BatchPhase& phase, int64_t num_samples, int64_t sequence_length) {
  const int64_t left = phase.until.value_or(0) - num_samples * sequence_length, step = phase.size * sequence_length;
  return left > 0 ? (left - 1) / step + 1 : 0;
}

}  // namespace

int64_t global_batch_after(const BatchOptions& options, int64_t num_samples) {
  for (const BatchPhase& phase : options.phases) {
    if (!phase.until || num_samples * options.sequence_length < *phase.until) return phase.size;
  }
  return options.global_batch;
}

int64_t samples_after(const BatchOptions& options, int64_t num_samples, int64_t steps, int64_t most) {
  for (const BatchPhase& phase : options.phases) {
    const int64_t here = std::min(steps, steps_of(phase, num_samples, options.sequence_length));
    num_samples += here * phase.size;
    steps -= here;
  }
  return steps > (most - num_samples) / options.global_batch ? most : num_samples + steps * options.global_batch;
}

std::string describe_growth(const BatchOptions& options) {
  if (options.phases.empty()) return "";
  std::string text = "global batch: ";
  int64_t steps = 0, num_samples = 0;
  for (const BatchPhase& phase : options.phases) {
    const int64_t here = steps_of(phase, num_samples, options.sequence_length);
    if (!phase.until) return text + "then " + std::to_string(phase.size);
    steps += here;
    num_samples += here * phase.size;
    text += (&phase == &options.phases.front() ? counted(phase.size, "sample") : std::to_string(phase.size)) +
            " up to step " + std::to_string(steps) + " (" + with_separators(num_samples * options.sequence_length) +
            " tokens), ";
  }
  return text;
}

}  // namespace meshtrain

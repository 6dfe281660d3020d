#pragma once

#include <string>
#include <vector>

#include "runtime/program/recipe/recipe.h"
#include "runtime/program/telemetry/notice.h"
#include "runtime/training/checkpoint/training_state.h"
#include "runtime/training/data/mixture.h"
#include "runtime/training/transformer/evaluation.h"

namespace meshtrain {

/// Returns the number of samples that a run has read at its end when it continues from `state`; at most the number
/// whose tokens can be counted.
int64_t samples_of_run(const TrainRecipe& train, const TrainingState& state = {});

/// Names the samples `first` .. `first` + `count` - 1 of the run by their positions in their files: "samples 8 to 11 of
/// a.bin". When many are not consecutive, names only some of them.
std::string describe_samples(const Mixture& data, int64_t first, int64_t count);

/// Describes the data that a run of `num_samples` reads, one line for each source: samples, tokens, and epochs of the
/// file. Warns of files that may be read wrongly. `evaluation`: null without evaluation.
std::vector<Notice> describe_data(const Recipe& recipe, const Mixture& data, int64_t num_samples,
                                  const Evaluation* evaluation);

}  // namespace meshtrain

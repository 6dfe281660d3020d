#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/training_state.h"
#include "runtime/data/mixture.h"
#include "runtime/trainer/evaluation.h"

namespace meshtrain {

/// How many samples a run has read at its end that goes on from `state`; no more than whose tokens can be counted.
int64_t samples_of_run(const TrainRecipe& train, const TrainingState& state = {});

/// What a run of `num_samples` reads, a line for each source: how many samples and tokens, and how often all that its
/// file has. `evaluation`: null when there is none.
std::vector<std::string> describe_data(const Recipe& recipe, const Mixture& data, int64_t num_samples,
                                       const Evaluation* evaluation);

}  // namespace meshtrain

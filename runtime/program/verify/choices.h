#pragma once

#include <cstdint>
#include <memory>

#include "mesh/group.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain {

/// The choices of experts on a mesh, beside those of the reference.
struct ChoiceComparison {
  int64_t changed = 0;    ///< tokens, in all layers with experts and steps, that chose other experts
  int64_t compared = 0;   ///< tokens in all of these; 0 without experts
  bool replayed = false;  ///< the mesh computed with the choices of the reference, so that results can be compared
};

/// Sets the use of choices in later steps of `trainer`. Does nothing without experts.
void use_choices(TransformerTrainer& trainer, const ChoiceUse& use);

/// Returns what a trainer on one rank has recorded in `num_steps` steps from the first sample on; null without experts.
std::shared_ptr<const RunChoices> recorded_choices(TransformerTrainer& trainer, int64_t num_steps);

/// Returns `choices` of rank 0 on every rank: those of a model and a batch as in `options`, for `num_steps` steps; null
/// without experts. Every rank of `world` must call it.
std::shared_ptr<const RunChoices> broadcast_choices(const std::shared_ptr<const RunChoices>& choices,
                                                    const TransformerOptions& options, int64_t num_steps,
                                                    const Group& world);

/// Returns the comparison of all ranks' choices with the reference. Every rank of the trainer must call it.
ChoiceComparison compare_choices(TransformerTrainer& trainer, bool replayed);

}  // namespace meshtrain

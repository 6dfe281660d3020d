#pragma once

#include <memory>

#include "mesh/device_mesh.h"
#include "runtime/data/dataset.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/trainer/trainer.h"

namespace meshtrain {

/// The held-out samples of a recipe, on which its model is evaluated every few steps.
class Evaluation {
 public:
  /// Throws InputError for the file of evaluate.tokens, which there is, as Dataset does, and when it has fewer than
  /// evaluate.samples. No collective.
  explicit Evaluation(const Recipe& recipe);

  /// Whether it belongs to the end of step `step`, from 1.
  bool is_due(int64_t step) const;
  int64_t num_samples() const { return num_samples_; }

  /// The mean loss over all counted tokens of all these samples, which are shared out over dp in micro-batches; where
  /// they do not divide some ranks compute tokens that do not count. Every rank of `mesh`, the trainer's, must
  /// call it, between steps: nothing that is trained changes.
  EvaluationMetrics run(Trainer& trainer, const DeviceMesh& mesh) const;

 private:
  EvaluateRecipe recipe_;
  TrainRecipe train_;
  Dataset dataset_;
  int64_t num_samples_;
};

/// None when the recipe asks for none. No collective.
std::unique_ptr<Evaluation> make_evaluation(const Recipe& recipe);

}  // namespace meshtrain

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "mesh/device_mesh.h"
#include "runtime/training/data/dataset.h"
#include "runtime/training/metrics/step_metrics.h"
#include "runtime/training/transformer/held_out_loss.h"
#include "runtime/training/transformer/sequences.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// The held-out samples of a run, on which its model is evaluated every few steps.
class Evaluation {
 public:
  /// Opens the file of `options`, which must name one, for the model of `trained`; the run ends after `last_step`.
  /// Throws InputError as Dataset does, when no label of its samples counts, and when the file has fewer samples than
  /// `options` request. Not collective.
  Evaluation(const EvaluationOptions& options, const TransformerOptions& trained, int64_t last_step);

  /// Returns true when the model is evaluated after step `step`, counted from 1.
  bool is_due(int64_t step) const;
  int64_t num_samples() const { return num_samples_; }

  /// Returns true when these are all samples of the file and every label counts.
  bool counts_all() const;

  /// Returns the number of tokens in the file.
  int64_t num_tokens() const { return dataset_.num_tokens(); }

  /// Returns the mean loss over all counted tokens of these samples. The samples are distributed over dp in
  /// micro-batches; when they do not divide, some ranks compute tokens that do not count. `mesh`: that of the model's
  /// `parts`. Every rank of `mesh` must call it; a trainer's ranks, between steps. Changes nothing that is trained.
  /// `progress`, unless empty, is called before each micro-batch with the samples that all ranks have computed.
  /// `links`: those of the pipeline whose stages `parts` are.
  EvaluationMetrics run(const ModelParts& parts, const DeviceMesh& mesh,
                        const std::function<void(int64_t)>& progress = {}, const PipelineLinks* links = nullptr) const;

  /// Does the same, but returns nothing, on every rank alike, when `is_stop_asked` returns true on any rank before one
  /// of the micro-batches: a run that is asked to stop has seconds for its checkpoint.
  std::optional<EvaluationMetrics> run_unless(const ModelParts& parts, const DeviceMesh& mesh,
                                              const PipelineLinks* links,
                                              const std::function<bool()>& is_stop_asked) const;

 private:
  std::optional<EvaluationMetrics> run(const ModelParts& parts, const DeviceMesh& mesh, const PipelineLinks* links,
                                       const std::function<void(int64_t)>& progress,
                                       const std::function<bool()>& ends) const;

  EvaluationOptions options_;
  BatchOptions batch_;
  SequenceLayout::Kind layout_;
  int64_t last_step_;
  Dataset dataset_;
  int64_t num_samples_;
};

/// Returns the evaluation likewise; null when `options` name no file. Not collective.
std::unique_ptr<Evaluation> make_evaluation(const EvaluationOptions& options, const TransformerOptions& trained,
                                            int64_t last_step);

}  // namespace meshtrain

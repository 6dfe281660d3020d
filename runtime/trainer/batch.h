#pragma once

#include <vector>

#include "context_parallel/sequence_layout.h"
#include "mesh/device_mesh.h"
#include "runtime/data/documents.h"
#include "runtime/data/samples.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// The tokens of some samples that this rank computes: its context-parallel positions of each.
struct MicroBatch {
  at::Tensor ids;                 ///< int64 [T], T = micro_batch * s
  at::Tensor labels;              ///< int64 [T], already shifted; kIgnoredLabel where not counted
  DocumentStarts documents = {};  ///< of the whole sequences, all S positions; empty: each is one document
};

/// Labels that count.
int64_t count_labels(const MicroBatch& micro_batch);

/// A data-parallel rank's share of one global batch.
struct StepBatch {
  std::vector<MicroBatch> micro_batches;
  int64_t num_counted = 0;  ///< labels that count on this rank: to be summed over dp x cp
};

/// Reads what this rank computes of a step over samples `first` .. `first` + B - 1, of which data-parallel rank d takes
/// the d-th run of B / dp (design rule 5). tp and cp peers read the same samples and find the same documents in them.
/// No collective.
StepBatch read_batch(const Samples& samples, const Recipe& recipe, const DeviceMesh& mesh, const SequenceLayout& layout,
                     int64_t first);

/// The same of step `step` (from 0) of a run whose global batch is always the same: samples from step * B on.
StepBatch read_step(const Samples& samples, const Recipe& recipe, const DeviceMesh& mesh, const SequenceLayout& layout,
                    int64_t step);

/// One micro-batch of samples: those with indices below `end` of `first`, `first` + 1, ..., as many as
/// train.micro_batch; in the place of others are tokens that do not count. No collective.
MicroBatch read_micro_batch(const Samples& samples, const TrainRecipe& train, const SequenceLayout& layout,
                            int64_t first, int64_t end);

/// What a rank computes of a step of `num_micro_batches`, with drawn tokens that all count in the place of data: to
/// measure or to predict a step. On the Meta device the tokens have no values. No collective.
StepBatch made_step(const Recipe& recipe, const SequenceLayout& layout, int64_t num_micro_batches, at::Device device);

}  // namespace meshtrain

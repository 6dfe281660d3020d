#pragma once

#include <optional>

#include "context_parallel/sequence_layout.h"
#include "mesh/device_mesh.h"
#include "runtime/training/data/samples.h"
#include "runtime/training/trainer/micro_batch.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the number of labels that count.
int64_t count_labels(const MicroBatch& micro_batch);

/// Reads this rank's part of a step over the samples `first` .. `first` + B - 1. Data-parallel rank d reads the d-th
/// run of B / dp samples (rule 5 of arithmetic); its tp and cp peers read the same samples and find the same documents.
/// `padding`: the token that num_padding counts, the same on every rank. Not collective.
StepBatch read_batch(const Samples& samples, const BatchOptions& options, const DeviceMesh& mesh,
                     const SequenceLayout& layout, int64_t first, std::optional<int64_t> padding = {});

/// Reads step `step` (from 0) of a run with a constant global batch: the samples from step * B on.
StepBatch read_step(const Samples& samples, const BatchOptions& options, const DeviceMesh& mesh,
                    const SequenceLayout& layout, int64_t step);

/// Reads one micro-batch of samples from `first` on. Samples from `end` on are replaced by tokens that
/// do not count. Not collective.
MicroBatch read_micro_batch(const Samples& samples, const BatchOptions& options, const SequenceLayout& layout,
                            int64_t first, int64_t end);

/// Returns this rank's part of a step of `num_micro_batches` with random tokens that all count, to measure or predict a
/// step. On the Meta device the tokens have no values. Not collective.
StepBatch made_step(const TransformerOptions& options, const SequenceLayout& layout, int64_t num_micro_batches,
                    at::Device device);

}  // namespace meshtrain

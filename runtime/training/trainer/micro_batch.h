#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace meshtrain {

/// Some samples that this rank computes at once.
struct MicroBatch {
  at::Tensor inputs;  ///< for the first part; tokens: int64 [T], T = micro_batch * s
  at::Tensor labels;  ///< for the last part; tokens: int64 [T], already shifted; kIgnoredLabel where not counted
  /// The positions, among all S, at which documents begin in each sequence (DocumentStarts); empty: each sequence is
  /// one document.
  std::vector<std::vector<int64_t>> documents = {};
  int64_t first_sample = 0;  ///< the number of its first sample in the run, from which dropout draws
  /// int64 [B, S], in [0, S): positions other than those that begin at 0 in each of `documents`, in training alone;
  /// undefined: those.
  at::Tensor positions = {};
};

/// A data-parallel rank's share of one global batch.
struct StepBatch {
  std::vector<MicroBatch> micro_batches;
  int64_t num_counted = 0;                  ///< number of labels that count on this rank; sum it over dp x cp
  std::optional<int64_t> num_padding = {};  ///< number of inputs that are the padding token; sum it likewise
};

}  // namespace meshtrain

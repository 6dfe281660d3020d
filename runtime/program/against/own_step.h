#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/program/against/step_dump.h"

namespace meshtrain {

/// The samples that a data rank of the program computed at once.
struct BatchPart {
  int64_t rank = 0, micro_batch = 0;
  int64_t num_counted = 0;  ///< labels that count; not 0
  double loss_sum = 0;
  std::map<std::string, at::Tensor> gradients = {};  ///< of loss_sum, by parameter, fp64 or fp32 on the host: the
                                                     ///< elements() of the dump
};

/// The samples of a step, as a program may have read them.
struct StepReading {
  at::Tensor labels;              ///< int64 [samples, S], as StepDump::labels()
  DocumentStarts documents = {};  ///< of each sample; empty: each is one document
  at::Tensor positions = {};      ///< int64 [samples, S]; undefined: they begin at 0 in each document
};

/// Returns the labels and documents of the dump.
StepReading reading_of(const StepDump& dump);

/// A step of the dump's model from the dump's weights, computed on one rank.
struct OwnStep {
  std::vector<std::string> names;  ///< of the parameters that the dump covers, in the order of the model
  std::map<std::string, std::vector<int64_t>> shapes;  ///< of all parameters
  std::map<std::string, double> lengths;  ///< of all parameters' gradients of the mean loss, of all their elements
  std::vector<BatchPart> parts;           ///< in the order of ranks, then micro-batches; at least one

  int64_t num_counted() const;
  /// Returns the mean loss of the counted labels.
  double loss() const;
  /// Returns the length of the complete gradient of the mean loss.
  double norm() const;
  /// Returns the elements() of a parameter's gradient of the mean loss, fp64.
  at::Tensor gradient(const std::string& name) const;
};

/// Computes the step, in `precision` as recipes have it. `apart`: each rank's micro-batches are a part of their own, up
/// to 16 parts for which there is memory; else all samples are one. Throws InputError when no label counts. No
/// collective.
OwnStep compute_step(const StepDump& dump, const StepReading& reading, const std::string& precision, bool apart);

}  // namespace meshtrain

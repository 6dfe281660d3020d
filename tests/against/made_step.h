#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/program/against/own_step.h"

namespace meshtrain::testing {

struct MadeStepOptions {
  std::string family = "llama";          ///< a folder of tests/fixtures, which has the model
  int64_t ranks = 2, micro_batches = 2;  ///< data ranks, and micro-batches of each: together a divisor of 8
  at::ScalarType weights = at::kFloat;   ///< dtype of the program's weights
  bool documents = false;                ///< divides each sample into two documents
};

/// A right step of another program, as tools/dump_step.py writes one, made without Python: 8 samples of 12 tokens,
/// whose numbers of labels differ. A test changes it and writes it. No collective.
class MadeStep {
 public:
  using Tensors = std::map<std::string, at::Tensor>;

  static constexpr double kRate = 1e-3, kDecay = 0.1, kClip = 0.5;

  explicit MadeStep(std::filesystem::path folder, MadeStepOptions options = {});

  static double norm(const Tensors& tensors);
  /// Returns the sum of the parts' gradients with these weights, 1 where right.
  Tensors of_parts(const std::vector<double>& weights) const;
  /// Sets the program's weights after AdamW's first step. `decay`: of a parameter.
  void update(double clip_factor, const std::function<double(const std::string&)>& decay);
  void update(double clip_factor, double decay) {
    update(clip_factor, [decay](const std::string&) { return decay; });
  }
  /// Takes other gradients, and what follows from them.
  void take(const Tensors& changed);
  /// Takes the step of another reading.
  void take_reading(const StepReading& reading);
  /// Writes the folder.
  void write() const;
  void write_step() const;
  void write(const std::string& kind, const Tensors& tensors) const;

  const std::filesystem::path& folder() const { return folder_; }

  nlohmann::json step;  ///< of step.json
  OwnStep own;
  Tensors gradients, before, after;  ///< of the program

 private:
  void write_batch() const;
  void save(const std::string& file, const Tensors& tensors) const;

  std::filesystem::path folder_;
  MadeStepOptions options_;
};

}  // namespace meshtrain::testing

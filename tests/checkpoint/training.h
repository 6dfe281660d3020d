#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/program/run/resume.h"
#include "runtime/training/data/mixture.h"
#include "runtime/training/trainer/checkpoints.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain::testing {

/// The samples of a recipe's data, with a list of those read, in order. One thread at a time may read.
class ListedSamples final : public Samples {
 public:
  explicit ListedSamples(const Recipe& recipe);

  std::vector<int64_t> read(int64_t g, int64_t* inputs, int64_t* labels) const override;
  const Mixture& mixture() const { return mixture_; }
  /// Returns the samples read since the last call.
  std::vector<Mixture::Location> take_list() const { return std::exchange(list_, {}); }

 private:
  Mixture mixture_;
  mutable std::vector<Mixture::Location> list_;
};

/// A training that is saved and resumed, on the ranks of one group. Each rank makes the same calls.
class Training {
 public:
  /// Trains `recipe`, on its mesh and in its order. `resumes`: begins with zeros; call resume() first.
  Training(const Recipe& recipe, const Group& ranks, bool resumes = false);

  /// Makes `steps` more steps and returns their losses.
  std::vector<double> run(int64_t steps);
  /// Begins to write a checkpoint below `folder`. Destroy the result before this object and before the next step.
  std::unique_ptr<Checkpoints> begin_save(const std::filesystem::path& folder);
  /// Writes a checkpoint and waits for it.
  void save(const std::filesystem::path& folder);
  /// Writes the weights, gathered over the mesh, as a Hugging Face folder.
  void export_to(const std::filesystem::path& folder);
  /// Resumes from the newest checkpoint below `folder`.
  ResumePoint resume(const std::filesystem::path& folder);

  const TrainingState& state() const { return state_; }
  /// Returns the result of the last step, and its number of counted tokens.
  const StepResult& result() const { return result_; }
  int64_t num_counted() const { return num_counted_; }
  TransformerTrainer& trainer() { return trainer_; }
  const ListedSamples& samples() const { return samples_; }

 private:
  Recipe recipe_;
  Group ranks_;
  MeshLayout layout_;
  DeviceMesh mesh_;
  ListedSamples samples_;
  TransformerTrainer trainer_;
  TrainingState state_;
  StepResult result_;
  int64_t num_counted_ = 0;
};

/// Returns the newest checkpoint below `folder`.
std::filesystem::path newest(const std::filesystem::path& folder);

/// Describes how the tensors and the state of two checkpoints differ, to the bit; empty when they do not. Call on one
/// rank.
std::string difference(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace meshtrain::testing

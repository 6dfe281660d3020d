#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/data/mixture.h"
#include "runtime/run/checkpoints.h"
#include "runtime/run/resume.h"
#include "runtime/trainer/trainer.h"

namespace meshtrain::testing {

/// Samples of a recipe's data, and which of them were read, in this order. One thread at a time may read.
class ListedSamples final : public Samples {
 public:
  explicit ListedSamples(const Recipe& recipe);

  std::vector<int64_t> read(int64_t g, int64_t* inputs, int64_t* labels) const override;
  const Mixture& mixture() const { return mixture_; }
  /// What has been read since this was asked last.
  std::vector<Mixture::Location> take_list() const { return std::exchange(list_, {}); }

 private:
  Mixture mixture_;
  mutable std::vector<Mixture::Location> list_;
};

/// A training that is saved and gone on with, on the ranks of one group. Each of them makes the same calls.
class Training {
 public:
  /// Of `recipe`, on its mesh and in its order.
  Training(const Recipe& recipe, const Group& ranks);

  /// The losses of so many more steps.
  std::vector<double> run(int64_t steps);
  /// Begins to write the checkpoint of where it is below `folder`. It outlives neither this nor the next step.
  std::unique_ptr<Checkpoints> begin_save(const std::filesystem::path& folder);
  /// Writes it, and waits for it.
  void save(const std::filesystem::path& folder);
  /// Its weights, gathered over the mesh, as a Hugging Face folder.
  void export_to(const std::filesystem::path& folder);
  /// Goes on from the newest checkpoint below `folder`.
  Resumed resume(const std::filesystem::path& folder);

  const TrainingState& state() const { return state_; }
  Trainer& trainer() { return trainer_; }
  const ListedSamples& samples() const { return samples_; }

 private:
  Recipe recipe_;
  Group ranks_;
  MeshLayout layout_;
  DeviceMesh mesh_;
  ListedSamples samples_;
  Trainer trainer_;
  TrainingState state_;
};

/// The newest checkpoint below `folder`.
std::filesystem::path newest(const std::filesystem::path& folder);

/// How the tensors and the state of two checkpoints differ, to the bit; empty when they do not. Of one rank.
std::string difference(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace meshtrain::testing

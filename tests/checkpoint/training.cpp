#include "tests/checkpoint/training.h"

#include <cstring>
#include <limits>
#include <utility>

#include "mesh/agree.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/export_model.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/trainer/checkpoints.h"
#include "runtime/training/transformer/batch.h"
#include "runtime/training/transformer/batch_growth.h"

namespace meshtrain::testing {
namespace {

/// Returns the complete tensor.
at::Tensor full(CheckpointReader& reader, const std::string& name, const StoredTensor& stored) {
  const Box box{std::vector<int64_t>(stored.shape.size(), 0), stored.shape};
  const at::Tensor values = at::empty(stored.shape, stored.dtype);
  reader.read({name, stored.shape, box, values});
  return values;
}

std::string difference(const TrainingState& a, const TrainingState& b) {
  const auto numbers = [](const TrainingState& state) {
    const TrainingState::LossScale scale = state.loss_scale.value_or(TrainingState::LossScale{-1, -1});
    return std::vector<double>{static_cast<double>(state.step),
                               static_cast<double>(state.num_samples),
                               static_cast<double>(state.num_updates),
                               static_cast<double>(state.num_skipped),
                               scale.value,
                               static_cast<double>(scale.num_finite)};
  };
  const auto recent = [](const TrainingState& state) {
    const auto steps = state.recent.value_or(TrainingState::RecentSteps{});
    return std::pair(steps.losses, steps.grad_norms);
  };
  if (recent(a) != recent(b)) return "the recent steps differ";
  return numbers(a) == numbers(b) ? "" : "the state differs";
}

}  // namespace

ListedSamples::ListedSamples(const Recipe& recipe)
    : mixture_(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size,
               static_cast<uint64_t>(recipe.train.seed)) {}

std::vector<int64_t> ListedSamples::read(int64_t g, int64_t* inputs, int64_t* labels) const {
  list_.push_back(mixture_.locate(g));
  return mixture_.read(g, inputs, labels);
}

Training::Training(const Recipe& recipe, const Group& ranks, bool resumes)
    : recipe_(recipe),
      ranks_(ranks),
      layout_(MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, ranks.size())),
      mesh_(layout_, ranks),
      samples_(recipe),
      trainer_(resolve(recipe_, layout_), mesh_, at::kCPU, resumes) {}

std::vector<double> Training::run(int64_t steps) {
  std::vector<double> losses;
  for (int64_t i = 0; i < steps; ++i) {
    BatchOptions options = recipe_.train;
    options.global_batch = global_batch_after(options, state_.num_samples);
    const StepBatch batch = read_batch(samples_, options, mesh_, trainer_.layout(), state_.num_samples);
    num_counted_ = trainer_.count_tokens(batch);
    const StepOutcome outcome = trainer_.step(batch, num_counted_, {recipe_.optimizer.learning_rate});
    result_ = outcome.read();
    losses.push_back(result_.loss);
    ++state_.step;
    state_.num_samples += options.global_batch;
  }
  return losses;
}

std::unique_ptr<Checkpoints> Training::begin_save(const std::filesystem::path& folder) {
  auto checkpoints = std::make_unique<Checkpoints>(KeptCheckpoints{}, CheckpointDisks(CheckpointFolder(folder), ranks_),
                                                   describe_run(recipe_, layout_), trainer_, ranks_);
  trainer_.write(state_);
  checkpoints->save(state_);
  return checkpoints;
}

void Training::save(const std::filesystem::path& folder) {
  begin_save(folder)->finish();
}

void Training::export_to(const std::filesystem::path& folder) {
  export_model(trainer_.index(), trainer_.groups(), shape_to_export(recipe_), {}, mesh_, folder);
}

ResumePoint Training::resume(const std::filesystem::path& folder) {
  const int64_t any_step = std::numeric_limits<int64_t>::max();
  ResumeCandidate candidate;
  agree(ranks_, [&] {
    if (ranks_.rank() == 0) candidate = resume_candidate(newest(folder), describe_run(recipe_, layout_), any_step);
  });
  const ResumePoint resumed = meshtrain::resume(std::move(candidate), trainer_, ranks_);
  state_ = resumed.state;
  return resumed;
}

std::filesystem::path newest(const std::filesystem::path& folder) {
  const CheckpointFolder checkpoints(folder);
  return checkpoints.step(checkpoints.steps().at(checkpoints.steps().size() - 1));
}

std::string difference(const std::filesystem::path& a, const std::filesystem::path& b) {
  const Manifest first = read_manifest(a), second = read_manifest(b);
  if (first.tensors.size() != second.tensors.size()) return "other tensors";
  CheckpointReader from_first(a, first), from_second(b, second);
  for (const auto& [name, stored] : first.tensors) {
    if (!second.tensors.contains(name)) return name + " is not in " + b.string();
    const at::Tensor one = full(from_first, name, stored), other = full(from_second, name, second.tensors.at(name));
    const bool alike = one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes();
    if (!alike || std::memcmp(one.data_ptr(), other.data_ptr(), one.nbytes()) != 0) return name + " differs";
  }
  return difference(first.head.state, second.head.state);
}

}  // namespace meshtrain::testing

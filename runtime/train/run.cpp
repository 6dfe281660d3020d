#include "runtime/train/run.h"

#include <chrono>
#include <cmath>
#include <memory>

#include "mesh/agree.h"
#include "mesh/error.h"
#include "runtime/config/context.h"
#include "runtime/config/validate.h"
#include "runtime/data/dataset.h"
#include "runtime/hf/export.h"
#include "runtime/model/export_model.h"
#include "runtime/optimizer/schedule.h"
#include "runtime/train/journal.h"
#include "runtime/train/stop_request.h"
#include "runtime/train/trainer.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ModelSize size_of(Trainer& trainer) {
  ModelSize size;
  for (const Parameter* parameter : trainer.model().parameters()) {
    const int64_t count = c10::multiply_integers(parameter->global_shape);
    size.num_parameters += count;
    if (parameter->tensor.requires_grad()) size.num_trainable += count;
  }
  return size;
}

void refuse_non_finite(const Trainer& trainer, const StepMetrics& metrics) {
  if (std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm)) return;
  const std::string name = trainer.find_non_finite();
  throw AgreedError("step " + std::to_string(metrics.step) + ": loss " + std::to_string(metrics.loss) +
                    ", gradient norm " + std::to_string(metrics.grad_norm) +
                    (name.empty() ? "; every gradient is finite by itself"
                                  : "; the first gradient that is not finite is that of " + name));
}

/// The steps, from the first to the last, or until a rank asks to stop.
RunEnd train(const Recipe& recipe, const DeviceMesh& mesh, const Dataset& dataset, Trainer& trainer, Journal* journal,
             const StopRequest& stop_request, Clock::time_point start) {
  const TrainRecipe& train = recipe.train;
  for (int64_t step = 1; step <= train.steps; ++step) {
    const Clock::time_point step_start = Clock::now();
    const StepBatch batch = read_step(dataset, recipe, mesh, trainer.layout(), step - 1);
    const int64_t num_counted = trainer.count_tokens(batch);
    const double rate = learning_rate(recipe.schedule, recipe.optimizer.learning_rate, step, train.steps);
    const bool stop = stop_request.requested() || (train.time_limit > 0 && seconds_since(start) > train.time_limit);
    const int64_t every = train.parameter_metrics.every;
    const bool measure = every > 0 && step % every == 0;
    const StepOutcome outcome = trainer.step(batch, num_counted, rate, stop, measure);

    StepMetrics metrics{step, outcome.loss.item<double>(), outcome.grad_norm.item<double>(), rate};
    metrics.tokens = step * train.global_batch * train.sequence_length;
    metrics.step_seconds = seconds_since(step_start);
    metrics.tokens_per_second = static_cast<double>(train.global_batch * train.sequence_length) / metrics.step_seconds;
    refuse_non_finite(trainer, metrics);
    if (journal) journal->record(metrics);
    if (journal && measure) journal->record(step, trainer.read_parameters(outcome));
    if (outcome.stop.item<double>() > 0 && step < train.steps) {
      if (journal)
        journal->say("stopped on request after step " + std::to_string(step) + "; there are no checkpoints yet");
      return RunEnd::Stopped;
    }
  }
  return RunEnd::Done;
}

}  // namespace

RunEnd run(const Recipe& recipe, const Group& world, const RunOptions& options) {
  const Clock::time_point start = Clock::now();
  const StopRequest stop_request;  // a request while weights are loaded waits for the first step
  const MeshLayout mesh_layout = MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, world.size());
  validate(recipe, mesh_layout);
  const DeviceMesh mesh(mesh_layout, world);
  DataParallel data_parallel = make_data_parallel(recipe, mesh);  // collective: while every rank is as the others

  std::unique_ptr<Dataset> dataset;
  agree(world, [&] {
    dataset = std::make_unique<Dataset>(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size,
                                        static_cast<uint64_t>(recipe.train.seed));
  });
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Journal> journal;
  agree(world, [&] {
    trainer = std::make_unique<Trainer>(recipe, mesh, at::kCPU, std::move(data_parallel));
    if (mesh.rank() != 0) return;
    if (!recipe.train.export_folder.empty()) check_export_folder(recipe.train.export_folder);
    const std::filesystem::path folder =
        options.run_dir.empty() ? std::filesystem::path("runs") / recipe.name : options.run_dir;
    journal = std::make_unique<Journal>(recipe, mesh_layout, folder, options.resume);
  });
  if (journal) {
    journal->announce(size_of(*trainer), trainer->sequence_parallel(), context_choice(recipe, mesh_layout),
                      sharding_choice(recipe, mesh_layout), trainer->fsdp().memory(),
                      trainer->shard_memory().disk_bytes());
  }
  try {
    const RunEnd end = train(recipe, mesh, *dataset, *trainer, journal.get(), stop_request, start);
    if (end == RunEnd::Stopped) return end;
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {  // of this rank alone, whatever its type
    throw std::runtime_error(mesh.world().place() + ": " + message_of(error));
  }
  if (!recipe.train.export_folder.empty()) {
    export_model(trainer->fsdp(), recipe.model.shape, mesh, recipe.train.export_folder);
    if (journal) journal->say("weights written to " + recipe.train.export_folder.string());
  }
  return RunEnd::Done;
}

}  // namespace meshtrain

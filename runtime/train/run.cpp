#include "runtime/train/run.h"

#include <atomic>
#include <chrono>
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
#include "runtime/train/skipped_steps.h"
#include "runtime/train/stop_request.h"
#include "runtime/train/trainer.h"
#include "runtime/train/watch.h"

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

/// Where a rank is in its run: for messages, on any thread.
struct Progress {
  std::string describe() const { return "step " + std::to_string(step) + ", " + trainer.fsdp().place(); }

  const Trainer& trainer;
  std::atomic<int64_t> step = 0;
};

/// Says of what goes wrong on this rank alone where that was.
template <class Step>
StepOutcome make_step(const Progress& progress, const Step& make) try {
  return make();
} catch (const AgreedError&) {
  throw;
} catch (const std::exception& error) {
  throw std::runtime_error(progress.describe() + ": " + message_of(error));
}

/// The steps, from the first to the last, or until a rank asks to stop.
RunEnd train(const Recipe& recipe, const DeviceMesh& mesh, const Dataset& dataset, Trainer& trainer, Journal* journal,
             const StopRequest& stop_request, Clock::time_point start) {
  Progress progress{trainer};
  const Watch watch(mesh.world(), [&] { return progress.describe(); });
  const TrainRecipe& train = recipe.train;
  SkippedSteps skipped(train);
  for (int64_t step = 1; step <= train.steps; ++step) {
    const Clock::time_point step_start = Clock::now();
    progress.step = step;
    const StepBatch batch = read_step(dataset, recipe, mesh, trainer.layout(), step - 1);
    const int64_t num_counted = trainer.count_tokens(batch);
    const double rate = learning_rate(recipe.schedule, recipe.optimizer.learning_rate, step, train.steps);
    const bool stop = stop_request.requested() || (train.time_limit > 0 && seconds_since(start) > train.time_limit);
    const int64_t every = train.parameter_metrics.every;
    const bool measure = every > 0 && step % every == 0;
    const StepOutcome outcome =
        make_step(progress, [&] { return trainer.step(batch, num_counted, rate, stop, measure); });

    StepMetrics metrics{step, outcome.loss.item<double>(), outcome.grad_norm.item<double>(), rate};
    metrics.tokens = step * train.global_batch * train.sequence_length;
    metrics.step_seconds = seconds_since(step_start);
    metrics.tokens_per_second = static_cast<double>(train.global_batch * train.sequence_length) / metrics.step_seconds;
    if (train.precision == "fp16_mixed") metrics.loss_scale = outcome.loss_scale;
    metrics.skipped = outcome.non_finite.item<bool>();
    if (metrics.skipped) metrics.non_finite = trainer.find_non_finite();
    skipped.judge(metrics);
    if (journal) journal->record(metrics);
    if (journal && measure) journal->record(step, trainer.read_parameters(outcome));
    if (outcome.stop.item<double>() > 0 && step < train.steps) {
      if (journal)
        journal->say("stopped on request after step " + std::to_string(step) + "; there are no checkpoints yet");
      return RunEnd::Stopped;
    }
  }
  skipped.finish();
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

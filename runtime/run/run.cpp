#include "runtime/run/run.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "context_parallel/attention_choice.h"
#include "mesh/agree.h"
#include "mesh/error.h"
#include "mesh/host_map.h"
#include "runtime/data/mixture.h"
#include "runtime/hf/export.h"
#include "runtime/hf/export_model.h"
#include "runtime/launch/connect.h"
#include "runtime/launch/connect_devices.h"
#include "runtime/optimizer/schedule.h"
#include "runtime/recipe/context.h"
#include "runtime/recipe/validate.h"
#include "runtime/run/checkpoints.h"
#include "runtime/run/host_lock.h"
#include "runtime/run/journal.h"
#include "runtime/run/resume.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_files.h"
#include "runtime/run/skipped_steps.h"
#include "runtime/trainer/assemble.h"
#include "runtime/trainer/evaluation.h"
#include "runtime/trainer/read_ahead.h"
#include "runtime/trainer/trainer.h"
#include "runtime/watch/phase.h"

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
  std::string describe() const { return "step " + std::to_string(step) + ", " + trainer.fsdp().phase(); }

  const Trainer& trainer;
  std::atomic<int64_t> step = 0;
};

/// Says of what goes wrong on this rank alone where that was.
template <class Step>
auto make_step(const Progress& progress, const Step& make) -> decltype(make()) try {
  return make();
} catch (const AgreedError&) {
  throw;
} catch (const std::exception& error) {
  throw std::runtime_error(progress.describe() + ": " + message_of(error));
}

/// A run under way: what its steps work on.
struct Running {
  const Recipe& recipe;
  const DeviceMesh& mesh;
  const Evaluation* evaluation;  // null: none is asked for
  Trainer& trainer;
  Checkpoints& checkpoints;
  ReadAhead<StepBatch>& batches;  // of the steps to come
  Journal* journal;               // of rank 0
  const StopRequest& stop_request;
  Clock::time_point start;

  void say(const std::string& line) const {
    if (journal) journal->say(line);
  }
};

/// Has the caller of run() report what `work` throws before anything that outlives it is cleaned up.
template <class Work>
auto report_first(const RunOptions& options, const Work& work) -> decltype(work()) try {
  return work();
} catch (const std::exception& error) {
  if (options.on_failure) options.on_failure(error);
  throw;
}

/// Whether a run has a checkpoint of its last step only because it exports: what it asks for is on the disk before the
/// export, which may fail.
bool saves_for_export(const Recipe& recipe) {
  return recipe.checkpoint.every == 0 && !recipe.train.export_folder.empty();
}

/// The steps after `state`, to the last, or until a rank asks to stop.
RunEnd train(const Running& run, TrainingState state) {
  const auto& [recipe, mesh, evaluation, trainer, checkpoints, batches, journal, stop_request, start] = run;
  Progress progress{trainer};
  const Phase phase([&] { return progress.describe(); });
  const TrainRecipe& train = recipe.train;
  SkippedSteps skipped(train, state.step, state.num_skipped);
  const auto say_written = [&](const std::optional<WrittenCheckpoint>& written) {
    if (written && journal) journal->announce(*written);
  };
  const auto save = [&] {
    state.num_skipped = skipped.in_a_row();
    trainer.write(state);
    say_written(checkpoints.finish());  // should the one before not be durable yet
    agree(mesh.world(), [&] {
      if (journal) journal->sync();
    });
    checkpoints.save(state);
  };
  const bool has_trained = state.step < train.steps;
  Clock::time_point step_start = Clock::now();
  for (int64_t step = state.step + 1; step <= train.steps; ++step) {
    progress.step = step;
    const StepBatch batch = batches.next();
    const int64_t num_counted = trainer.count_tokens(batch);
    const double rate = learning_rate(recipe.schedule, recipe.optimizer.learning_rate, step, train.steps);
    const bool stop = stop_request.requested() || (train.time_limit > 0 && seconds_since(start) > train.time_limit);
    const bool saved = checkpoints.done();
    const int64_t every = train.parameter_metrics.every;
    const bool measure = every > 0 && step % every == 0;
    const StepOutcome outcome =
        make_step(progress, [&] { return trainer.step(batch, num_counted, rate, stop, measure, saved); });

    state.step = step;
    state.num_samples += train.global_batch;
    const StepResult result = make_step(progress, [&] {
      const StepResult read = outcome.read();  // the one time in a step that the host waits for a device
      trainer.shard_memory().check_written();
      mesh.world().check();
      return read;
    });
    StepMetrics metrics{step, result.loss, result.grad_norm, rate};
    metrics.tokens = state.num_samples * train.sequence_length;
    metrics.step_seconds = seconds_since(step_start);
    step_start = Clock::now();  // a checkpoint begun below counts for the step that waits for it
    metrics.tokens_per_second = static_cast<double>(train.global_batch * train.sequence_length) / metrics.step_seconds;
    if (train.precision == "fp16_mixed") metrics.loss_scale = outcome.loss_scale;
    metrics.skipped = result.non_finite;
    if (metrics.skipped) metrics.non_finite = trainer.find_non_finite();
    skipped.judge(metrics);
    const bool stopped = result.num_stop > 0 && step < train.steps;
    if (evaluation && evaluation->is_due(step) && !stopped) {  // who asks to stop waits for no more than a checkpoint
      metrics.evaluation = make_step(progress, [&] { return evaluation->run(trainer, mesh); });
      step_start = Clock::now();
    }
    if (journal) journal->record(metrics);
    if (journal && measure) journal->record(step, trainer.read_parameters(outcome));

    if (result.num_saved == mesh.size()) say_written(checkpoints.advance());
    const int64_t period = recipe.checkpoint.every;
    const bool is_due = period > 0 && (step % period == 0 || step == train.steps);
    if (stopped || is_due) save();
    if (!stopped) continue;
    say_written(checkpoints.finish());
    run.say("stopped on request after step " + std::to_string(step) + "; go on with --resume");
    return RunEnd::Stopped;
  }
  if (saves_for_export(recipe) && state.step == train.steps && has_trained) {
    try {
      save();
      say_written(checkpoints.finish());
    } catch (const AgreedError& error) {
      run.say(std::string("warning: ") + error.what());  // it was not asked for; the weights are exported
    }
  }
  say_written(checkpoints.finish());
  skipped.finish();
  return RunEnd::Done;
}

/// Exports the weights as the recipe says. A failure, which all ranks throw, comes after the training: it is none of
/// the input.
void export_weights(const Recipe& recipe, const DeviceMesh& mesh, Trainer& trainer, const Journal* journal) try {
  const Phase phase("the export to " + recipe.train.export_folder.string());
  const CarriedOver carried = carried_over(recipe);
  const std::string folder =
      export_model(trainer.fsdp(), shape_to_export(recipe), carried, mesh, recipe.train.export_folder);
  if (journal) journal->say("weights written to " + folder + describe(carried));
} catch (const InputError& error) {
  throw AgreedError(error.what());
}

}  // namespace

Recipe as_run(Recipe asked, const MeshLayout& layout) {
  for (const Axis& axis : layout.axes()) asked.parallel.mesh[axis.name] = axis.size;
  return asked;
}

RunEnd run(const Recipe& asked, const Group& world, const RunOptions& options, const StopRequest& stop_request) {
  const Clock::time_point start = Clock::now();
  const MeshLayout mesh_layout = MeshLayout::fit(asked.parallel.mesh, asked.parallel.order, world.size());
  const Recipe recipe = as_run(asked, mesh_layout);
  validate(recipe, mesh_layout);
  const Computing computing = connect_devices(device_request(recipe, mesh_layout), world);
  const DeviceMesh mesh(mesh_layout, computing.world);
  set_rank_name(mesh.world().coordinate_text());
  ReplicaMap replicas =
      map_replicas(sharding_choice(recipe, mesh_layout), mesh);  // collective: no rank has failed alone

  std::unique_ptr<Mixture> data;
  std::unique_ptr<Evaluation> evaluation;
  CheckpointHead head;
  agree(world, [&] {
    name_host(world, [&] {
      data = std::make_unique<Mixture>(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size,
                                       static_cast<uint64_t>(recipe.train.seed));
      evaluation = make_evaluation(recipe);
    });
    if (mesh.rank() == 0) head = describe_run(recipe, mesh_layout);
  });
  const std::filesystem::path folder = RunDirectory::folder_of(recipe, options.run_dir);
  const CheckpointFolder checkpoint_folder(RunDirectory::checkpoints_of(folder));
  const bool may_resume = options.resume || options.resume_step;
  std::optional<std::filesystem::path> checkpoint;
  agree(world, [&] {
    if (mesh.rank() == 0 && may_resume) checkpoint = checkpoint_to_resume(checkpoint_folder, options.resume_step);
  });
  const bool resumes = !broadcast_text(world, checkpoint ? "yes" : "").empty();
  check_same_files(recipe, recipe.model.init == "pretrained" && !resumes, world);
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<RunDirectory> directory;
  agree(world, [&] {
    trainer = std::make_unique<Trainer>(recipe, mesh, computing.device, std::move(replicas), resumes);
    if (mesh.rank() != 0) return;
    if (!recipe.train.export_folder.empty()) check_export_folder(recipe.train.export_folder);
    directory = std::make_unique<RunDirectory>(folder, may_resume);
    if (may_resume) checkpoint = checkpoint_to_resume(checkpoint_folder, options.resume_step);  // the newest by now
    if (!checkpoint) check_beginning(*directory, recipe.checkpoint.every);
    if (checkpoint.has_value() == resumes) return;
    throw InputError("another run changed the checkpoints in " + checkpoint_folder.folder().string() +
                     " meanwhile: start again");
  });
  const HostLock host_lock(folder, world);
  CheckpointDisks disks(checkpoint_folder, world, checkpoint.value_or(""));
  Resumed resumed;
  if (resumes) resumed = resume(checkpoint.value_or(""), head, recipe.train.steps, *trainer, world);
  std::unique_ptr<Journal> journal;
  disks.settle(resumed.state.step);  // before metrics are cut off
  agree(world, [&] {
    if (mesh.rank() == 0) journal = std::make_unique<Journal>(recipe, std::move(directory), resumed.state.step);
  });
  if (journal) {
    if (!threads_taken().empty()) journal->say(threads_taken());
    if (!computing.device.is_cpu()) journal->say("device " + computing.description);
    if (!computing.fallback.empty()) journal->say(computing.fallback);
    journal->announce(size_of(*trainer), trainer->sequence_parallel(), context_choice(recipe, mesh_layout),
                      sharding_choice(recipe, mesh_layout), trainer->fsdp().memory(),
                      trainer->shard_memory().disk_bytes());
    journal->announce(*data, samples_of_run(recipe.train, resumed.state), evaluation.get());
    if (resumes) {
      journal->announce(resumed);
    } else if (options.resume) {
      journal->announce_beginning();
    }
    if (resumed.state.step == recipe.train.steps)
      journal->say("all steps of train.steps are made: nothing is left to do");
  }
  if (recipe.train.cuda_graph) {
    const std::string hindrance = StepGraph::hindrance(recipe, computing.device, computing.make_graph != nullptr);
    if (hindrance.empty()) trainer->use_graph(computing.make_graph());
    if (journal) {
      journal->say("train.cuda_graph: " +
                   (hindrance.empty() ? "steps are recorded as one graph" : "no graph, as " + hindrance));
    }
  }
  Checkpoints checkpoints(recipe.checkpoint, std::move(disks), std::move(head), *trainer, world);
  const TrainingState& state = resumed.state;
  ReadAhead<StepBatch> batches(0, recipe.train.steps - state.step, [&, first = state.num_samples](int64_t i) {
    return read_batch(*data, recipe, mesh, trainer->layout(), first + i * recipe.train.global_batch);
  });
  return report_first(options, [&] {
    try {
      const RunEnd end = train(
          {recipe, mesh, evaluation.get(), *trainer, checkpoints, batches, journal.get(), stop_request, start}, state);
      if (journal && computing.peak_bytes) {
        for (const std::string& line : chosen_attention()) journal->say("attention by " + line);
        journal->say("GPU memory: tensors took " + std::to_string(computing.peak_bytes() >> 20) + " MiB at the most");
      }
      if (journal) journal->finish();
      if (end == RunEnd::Stopped) return end;
    } catch (const AgreedError&) {
      throw;
    } catch (const std::exception& error) {  // of this rank alone, whatever its type
      throw std::runtime_error(mesh.world().coordinate_text() + ": " + message_of(error));
    }
    if (!recipe.train.export_folder.empty()) export_weights(recipe, mesh, *trainer, journal.get());
    return RunEnd::Done;
  });
}

}  // namespace meshtrain

#include "runtime/train/run.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "mesh/agree.h"
#include "runtime/config/load.h"
#include "runtime/config/validate.h"
#include "runtime/hf/export.h"
#include "runtime/model/export_model.h"
#include "runtime/optimizer/schedule.h"
#include "runtime/telemetry/console.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/train/run_directory.h"
#include "runtime/train/stop_request.h"
#include "runtime/train/trainer.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::filesystem::path run_directory_of(const Recipe& recipe, const RunOptions& options) {
  return options.run_dir.empty() ? std::filesystem::path("runs") / recipe.name : options.run_dir;
}

/// `recipe` with the sizes that its mesh came to have.
Recipe as_run(Recipe recipe, const MeshLayout& layout) {
  for (const Axis& axis : layout.axes()) recipe.parallel.mesh[axis.name] = axis.size;
  return recipe;
}

/// What rank 0 alone does for a run: the folder, the metrics, the console.
class Journal {
 public:
  Journal(const Recipe& recipe, const MeshLayout& layout, const RunOptions& options)
      : recipe_(recipe), directory_(run_directory_of(recipe, options), options.resume) {
    spdlog::set_pattern("%v");
    directory_.write_recipe(to_yaml(as_run(recipe, layout)));
    metrics_.emplace(directory_.metrics(), /*last_step=*/0);
  }

  void announce(const DeviceMesh& mesh, const Trainer& trainer, int64_t num_parameters) const {
    spdlog::info("{}: {} parameters, mesh {}, sequence parallel {}, {}", recipe_.name, with_separators(num_parameters),
                 mesh.layout().describe(), trainer.sequence_parallel() ? "on" : "off", recipe_.train.precision);
    spdlog::info("run directory {}", directory_.folder().string());
    if (mesh.size("tp") > 1 && !trainer.sequence_parallel() && recipe_.parallel.sequence_parallel == "auto") {
      spdlog::info("sequence parallel is off because tp does not divide the tokens of a micro-batch");
    }
  }

  void record(const StepMetrics& metrics) {
    metrics_->append(metrics);
    if (metrics.step > 1) seconds_of_steady_steps_ += metrics.step_seconds;  // the first step warms up
    const double mean =
        metrics.step > 1 ? seconds_of_steady_steps_ / static_cast<double>(metrics.step - 1) : metrics.step_seconds;
    if (metrics.step % recipe_.train.log_every == 0 || metrics.step == recipe_.train.steps) {
      spdlog::info(
          console_line(metrics, recipe_.train.steps, mean * static_cast<double>(recipe_.train.steps - metrics.step)));
    }
  }

 private:
  const Recipe& recipe_;
  RunDirectory directory_;
  std::optional<MetricsFile> metrics_;
  double seconds_of_steady_steps_ = 0;
};

int64_t num_parameters(Trainer& trainer) {
  int64_t count = 0;
  for (const Parameter* parameter : trainer.model().parameters()) {
    count += c10::multiply_integers(parameter->global_shape);
  }
  return count;
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
    const StepBatch batch = read_step(dataset, train, mesh, trainer.layout(), step - 1);
    const int64_t num_counted = trainer.count_tokens(batch);
    const double rate = learning_rate(recipe.schedule, recipe.optimizer.learning_rate, step, train.steps);
    const bool stop = stop_request.requested() || (train.time_limit > 0 && seconds_since(start) > train.time_limit);
    const StepOutcome outcome = trainer.step(batch, num_counted, rate, stop);

    StepMetrics metrics{step, outcome.loss.item<double>(), outcome.grad_norm.item<double>(), rate};
    metrics.tokens = step * train.global_batch * train.sequence_length;
    metrics.step_seconds = seconds_since(step_start);
    metrics.tokens_per_second = static_cast<double>(train.global_batch * train.sequence_length) / metrics.step_seconds;
    refuse_non_finite(trainer, metrics);
    if (journal) journal->record(metrics);
    if (outcome.stop.item<double>() > 0 && step < train.steps) {
      if (journal) spdlog::info("stopped on request after step {}", step);
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

  std::unique_ptr<Dataset> dataset;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Journal> journal;
  agree(world, [&] {
    dataset = std::make_unique<Dataset>(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size,
                                        static_cast<uint64_t>(recipe.train.seed));
    trainer = std::make_unique<Trainer>(recipe, mesh, at::kCPU);
    if (mesh.rank() != 0) return;
    if (!recipe.train.export_folder.empty()) check_export_folder(recipe.train.export_folder);
    journal = std::make_unique<Journal>(recipe, mesh_layout, options);
  });
  if (journal) journal->announce(mesh, *trainer, num_parameters(*trainer));
  try {
    const RunEnd end = train(recipe, mesh, *dataset, *trainer, journal.get(), stop_request, start);
    if (end == RunEnd::Stopped) return end;
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {  // of this rank alone, whatever its type
    throw std::runtime_error(mesh.world().place() + ": " + error.what());
  }
  if (!recipe.train.export_folder.empty()) {
    export_model(trainer->model().parameters(), recipe.model.shape, mesh, recipe.train.export_folder);
    if (journal) spdlog::info("weights written to {}", recipe.train.export_folder.string());
  }
  return RunEnd::Done;
}

}  // namespace meshtrain

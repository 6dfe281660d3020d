#include "runtime/program/run/journal.h"

#include <fmt/format.h>

#include <exception>
#include <nlohmann/json.hpp>

#include "mesh/base/log.h"
#include "mesh/base/size_text.h"
#include "mesh/layout.h"
#include "runtime/program/recipe/context.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/recipe/pipeline_notes.h"
#include "runtime/program/recipe/sharding.h"
#include "runtime/program/run/skipped_steps.h"
#include "runtime/program/telemetry/console.h"
#include "runtime/program/telemetry/events.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"
#include "runtime/training/optimizer/optimizer.h"

namespace meshtrain {
namespace {

/// Returns warnings about settings with which a run trains less than its recipe says.
std::vector<std::string> warnings_of(const Recipe& recipe, const Decisions& decisions) {
  std::vector<std::string> warnings;
  const OptimizerOptions& optimizer = recipe.optimizer;
  if (optimizer.learning_rate == 0) {
    warnings.emplace_back("optimizer.learning_rate is 0: steps do not change weights");
  }
  if (optimizer_traits(optimizer.name).second_moments && optimizer.betas[1] > 0.99 &&
      decisions.optimizer.state_dtype == at::kBFloat16 && !decisions.rounding_seed) {
    warnings.push_back(fmt::format(
        "optimizer.betas[1] is {:g}, but the second moment is in bf16, which has too few digits to decay by "
        "that: set optimizer.state_dtype: fp32, train.stochastic_rounding: true, or betas[1] of at most 0.99",
        optimizer.betas[1]));
  }
  return warnings;
}

/// Returns a checkpoint's folder within its run directory.
std::string in_run(const std::filesystem::path& checkpoint) {
  return (checkpoint.parent_path().filename() / checkpoint.filename()).string();
}

}  // namespace

Journal::Journal(const Recipe& recipe, const Decisions& decisions, const std::vector<std::string>& hosts,
                 std::unique_ptr<RunDirectory> directory, int64_t last_step)
    : recipe_(recipe),
      decisions_(decisions),
      hosts_(hosts),
      directory_(std::move(directory)),
      first_step_(last_step + 1),
      last_step_(last_step),
      metrics_(directory_->metrics(), last_step, may_skip(recipe.train, decisions.loss_scale.has_value())),
      goodput_(directory_->goodput(), decisions.layout.size(), decisions.layout.describe(), last_step,
               metrics_.cut_steps()) {
  directory_->rename_older_files();
  directory_->write(to_yaml(recipe_), to_yaml(decisions_), hosts);
  if (recipe.train.parameter_metrics.every > 0) parameters_.emplace(directory_->parameter_metrics(), last_step);
  try {
    log_to(directory_->log());
  } catch (const std::exception& error) {
    log_warning("the log of this run is not written: " + std::string(error.what()));
  }
  if (recipe.train.tensorboard) tensorboard_.emplace(directory_->tensorboard(), first_step_);
  if (!directory_->warning().empty()) log_warning(directory_->warning());
}

void Journal::announce(const ModelSize& size, const Fsdp& fsdp) const {
  const MeshLayout& mesh = decisions_.layout;
  const std::string frozen =
      size.num_trainable < size.num_parameters ? " (" + with_separators(size.num_trainable) + " of them trained)" : "";
  log_info(fmt::format("{}: {} parameters{}, mesh {}, sequence parallel {}, {}", recipe_.name,
                       with_separators(size.num_parameters), frozen, mesh.describe(),
                       decisions_.sequence_parallel ? "on" : "off", recipe_.train.precision));
  StartEvent started{recipe_.name,      {}, hosts_, first_step_ - 1, recipe_.train.steps, size.num_parameters,
                     size.num_trainable};
  for (const Axis& axis : mesh.axes()) started.mesh.emplace_back(axis.name, axis.size);
  if (mesh.ep() > 1) started.mesh.emplace_back(kExpertAxis, mesh.ep());
  keep(append_event(started));
  for (const std::string& warning : warnings_of(recipe_, decisions_)) log_warning(warning);
  if (mesh.size(kDataAxis) * mesh.size(kContextAxis) > 1) {
    log_info("fsdp " + describe(decisions_.sharding));
    log_info("fsdp memory: " + describe(fsdp.memory()));
  } else if (const std::string& mode = recipe_.parallel.fsdp.mode;
             mode != "auto" && mode != name(decisions_.sharding.mode)) {
    log_info(fmt::format("fsdp {}: this mesh has no ranks to shard over, so {} has no effect",
                         name(decisions_.sharding.mode), mode));
  }
  const ShardMemory& memory = fsdp.state_memory();  // of shards too, unless they stay
  const char* const part = decisions_.offload_parameters ? "" : ", the optimizer's state alone";
  if (memory.disk_bytes() > 0) {
    log_info(fmt::format("offload to disk: {} a rank in {}{}", size_text(memory.disk_bytes()),
                         recipe_.parallel.fsdp.offload.path.string(), part));
  }
  if (memory.host_bytes() > 0) {
    log_info(fmt::format("offload to host: {} of pinned memory a rank{}", size_text(memory.host_bytes()), part));
  }
  if (const std::string pipeline = pipeline_summary(recipe_, decisions_); !pipeline.empty()) log_info(pipeline);
  if (mesh.size(kContextAxis) > 1) log_info("context parallel " + describe(decisions_.context));
  log_info("run directory " + directory_->folder().string());
  if (mesh.size(kTensorAxis) > 1 && !decisions_.sequence_parallel && recipe_.parallel.sequence_parallel == "auto") {
    log_info("sequence parallel is off because tp does not divide the tokens of a micro-batch");
  }
  if (const ProfileOptions& profile = recipe_.train.profile; profile.from > 0) {
    log_info(fmt::format("train.profile: {} a trace of {} from step {} on, to {}",
                         counted(profile.ranks.size(), "rank writes", "ranks write"), counted(profile.steps, "step"),
                         profile.from, directory_->traces().string()));
  }
  const at::Device device = fsdp.units().front().parameters().front()->tensor.device();
  if (recipe_.train.offload_activations && device.is_cpu()) {
    log_info("train.offload_activations has no effect: activations of this run are already in host memory");
  }
  if (decisions_.offload == Offload::Host && !memory.leaves(device)) {
    log_info("parallel.fsdp.offload to host has no effect: shards of this run are already in host memory");
  }
}

void Journal::announce(const Mixture& data, int64_t num_samples, const Evaluation* evaluation) const {
  for (const Notice& notice : describe_data(recipe_, data, num_samples, evaluation)) {
    notice.is_warning ? log_warning(notice.line) : log_info(notice.line);
  }
}

void Journal::announce(const ResumePoint& resumed) const {
  const std::string folder = resumed.folder.string();
  if (resumed.state.step == 0) {
    log_info("begins with the weights of " + folder);
  } else {
    log_info(fmt::format("resumed after step {}, from {} in {:.3g} s", resumed.state.step, folder, resumed.seconds));
  }
  std::vector<std::string> changes = resumed.changes;
  if (!resumed.warning.empty()) changes.push_back("warning: " + resumed.warning);
  keep(append_event(ResumeEvent{resumed.state.step, in_run(resumed.folder), resumed.seconds, std::move(changes)}));
  for (const std::string& change : resumed.changes) log_info("  " + change);
  if (!resumed.warning.empty()) log_warning(resumed.warning);
  if (const std::string aside = describe_set_aside(resumed.set_aside); !aside.empty()) log_info(aside);
  if (!metrics_.missing().empty()) {
    log_warning("metrics.jsonl has no lines of " + metrics_.missing() + ": these lines were lost");
  }
}

void Journal::announce_beginning() const {
  const int64_t cut = metrics_.num_cut();
  log_info(fmt::format("--resume: no checkpoint in {}: begins at step 1{}", directory_->checkpoints().string(),
                       cut == 0 ? "" : "; replaces " + counted(cut, "line") + " of metrics.jsonl"));
}

void Journal::announce(const WrittenCheckpoint& written) const {
  log_info(fmt::format("checkpoint of step {} written in {:.3g} s", written.step, written.seconds));
  const CheckpointFolder checkpoints(directory_->checkpoints());
  keep(append_event(CompletedCheckpoint{written.step, in_run(checkpoints.step(written.step)), written.seconds}));
}

void Journal::record(const StepMetrics& metrics) {
  metrics_.append(metrics);
  last_step_ = metrics.step;
  goodput_.account(metrics);
  if (tensorboard_) tensorboard_->append(metrics_.line_of(metrics));
  pace_.add(metrics.step_seconds);
  if (metrics.evaluation) seconds_of_evaluation_ += metrics.evaluation->seconds;
  const int64_t num_steps = recipe_.train.steps;
  const double expected =
      pace_.seconds() + seconds_of_evaluation_ / static_cast<double>(metrics.step - first_step_ + 1);
  const bool due = metrics.step % recipe_.train.log_every == 0 || metrics.step == num_steps;
  if (!due && !metrics.skipped && !metrics.evaluation) return;
  log_info(console_line(metrics, num_steps, expected * static_cast<double>(num_steps - metrics.step)));
}

void Journal::record(int64_t step, const std::vector<ParameterMetrics>& parameters) {
  parameters_->append(step, parameters);
}

void Journal::finish() {
  metrics_.finish();
  if (parameters_) parameters_->finish();
}

void Journal::announce_stop(int signal) const {
  log_info(fmt::format("stopped {} after step {}; continue with --resume",
                       signal == 0 ? "by train.time_limit" : "on request", last_step_));
  keep(append_stopped(last_step_, signal));
}

void Journal::end(const std::string& how) {
  goodput_.end(how);
  if (how == "done") keep(append_done(last_step_));
}

void Journal::keep(const std::string& problem) const {
  if (problem.empty()) return;
  const std::filesystem::path file = RunDirectory::events_of(directory_->folder());
  log_warning("cannot write " + file.string() + ": " + problem + ": an event of this run is missing in it");
}

void Journal::sync() {
  metrics_.sync();
  if (parameters_) parameters_->sync();
  goodput_.sync();
}

}  // namespace meshtrain

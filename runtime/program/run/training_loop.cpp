#include "runtime/program/run/training_loop.h"

#include <utility>

#include "mesh/agree.h"
#include "mesh/base/log.h"
#include "mesh/base/size_text.h"
#include "mesh/device/error_message.h"
#include "runtime/program/run/describe_data.h"
#include "runtime/program/watch/phase.h"
#include "runtime/training/model/flops.h"
#include "runtime/training/optimizer/schedule.h"
#include "runtime/training/transformer/batch_growth.h"

namespace meshtrain {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns true when a run saves its last step only because it exports: an export may fail, and the training must be on
/// disk before.
bool saves_for_export(const Recipe& recipe) {
  return recipe.checkpoint.every == 0 && !recipe.train.export_folder.empty();
}

/// Returns a function that returns the costs of all copies so far; null when nothing is offloaded.
std::function<CopyCosts()> copies_of(TransformerTrainer& trainer) {
  const ActivationOffload* const activations = trainer.sharded_model().activation_offload();
  if (!trainer.copies() && activations == nullptr) return {};
  return [&trainer, activations] {
    const CopyCosts shards = trainer.copy_costs();
    return activations == nullptr ? shards : shards + activations->copy_costs();
  };
}

/// Returns the keys of metrics.jsonl whose numbers are outliers.
std::string name_outliers(int kinds) {
  if (kinds == (Outliers::kLoss | Outliers::kGradNorm)) return "loss and grad_norm";
  return kinds == Outliers::kLoss ? "loss" : "grad_norm";
}

bool is_due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

}  // namespace

TrainingLoop::TrainingLoop(const StepContext& run, TrainingState state)
    : run_(run),
      state_(std::move(state)),
      skipped_(run.recipe.train, run.trainer.options().loss_scale.has_value(), state_.step, state_.num_skipped),
      step_(state_.step),
      saved_(state_.step),
      meter_(run.mesh, run.device_peak, copies_of(run.trainer)),
      stragglers_(run.mesh.layout(), run.journal != nullptr ? run.journal->hosts() : std::vector<std::string>()),
      flops_per_token_(
          meshtrain::flops_per_token(run.trainer.model(), run.recipe.model.shape, run.recipe.train.sequence_length)) {}

RunEnd TrainingLoop::run() {
  const Phase phase([this] { return PhaseState{location(), PhaseKind::Step, step_}; });
  const StallGuard guard([this] { return stall_limits(); });
  const int64_t num_steps = run_.recipe.train.steps;
  const bool has_steps = state_.step < num_steps;
  if (run_.journal) run_.journal->account("start_up");
  meter_.begin();
  while (state_.step < num_steps) {
    run_.profile.begin_step(state_.step + 1);
    const bool stops = make_step();
    run_.profile.end_step(state_.step);
    if (!stops) continue;
    run_.profile.finish();
    report(finish_checkpoint());
    if (run_.journal) run_.journal->announce_stop(stop_signal());
    return RunEnd::Stopped;
  }
  if (has_steps && saves_for_export(run_.recipe)) save_for_export();
  report(finish_checkpoint());
  skipped_.finish();
  return RunEnd::Done;
}

std::optional<WrittenCheckpoint> TrainingLoop::finish_checkpoint() {
  const Phase phase({"the checkpoint before step " + std::to_string(step_ + 1), PhaseKind::Saving, step_});
  return run_.checkpoints.finish();
}

bool TrainingLoop::make_step() {
  const TrainRecipe& train = run_.recipe.train;
  TransformerTrainer& trainer = run_.trainer;
  const int64_t step = state_.step + 1;
  step_ = step;
  const StepBatch batch = read_batch();
  FlightRecorder::own().set_work("count of labels");
  const Trainer::TokenCounts tokens = trainer.count(batch);
  if (tokens.padding > 0) mention_padding(tokens.padding);
  const StepRequest asked = request();
  std::optional<StepOutcome> outcome;
  if (tokens.counted > 0) outcome = locate([&] { return trainer.step(batch, tokens.counted, asked); });
  state_.step = step;
  const int64_t global_batch = global_batch_after(train, state_.num_samples);
  state_.num_samples += global_batch;
  const StepResult result = locate([&] {
    if (!outcome) return trainer.skip(asked);
    const StepResult read = outcome->read();  // the only time in a step that the host waits for a device
    trainer.check_written();
    run_.mesh.world().check();
    return read;
  });
  bool stops = result.num_stop > 0 && step < train.steps;
  const int64_t own_counted = trainer.pipeline().has_loss() ? batch.num_counted : 0;
  if (record(outcome ? &*outcome : nullptr, {own_counted, tokens.counted, global_batch, asked, result}, stops)) {
    stops = step < train.steps;
  }

  if (result.num_saved == run_.mesh.size()) advance_checkpoint();
  const int64_t every = run_.recipe.checkpoint.every;
  if (stops || is_due(step, every) || (every > 0 && step == train.steps)) save();
  return stops;
}

void TrainingLoop::mention_padding(int64_t count) {
  if (std::exchange(padding_mentioned_, true)) return;
  say("step " + std::to_string(step_) + " has the padding token, pad_token_id " +
      std::to_string(*run_.recipe.model.shape.pad_token_id) + ", " + counted(count, "time") +
      " in its inputs: its row of the embedding is trained; transformers gives it no gradient there, as "
      "model.freeze_padding_row: true does");
}

StepBatch TrainingLoop::read_batch() {
  const Phase phase({"the reading of step " + std::to_string(step_) + "'s samples", PhaseKind::Reading, step_});
  const StepMeter::Part part = meter_.data();
  FlightRecorder::own().set_work("reading of samples");
  return run_.batches.next();
}

bool TrainingLoop::is_stop_asked() const {
  const double limit = run_.recipe.train.time_limit;
  return run_.stop_request.requested() || (limit > 0 && seconds_since(run_.start) > limit);
}

int TrainingLoop::stop_signal() const {
  if (run_.stop_request.requested()) return run_.stop_request.signal();
  return is_stop_asked() ? 0 : -1;
}

StallLimits TrainingLoop::stall_limits() const {
  const ParallelRecipe& parallel = run_.recipe.parallel;
  return {.warning = std::chrono::duration<double>(parallel.stall_warning),
          .timeout = std::chrono::duration<double>(parallel.timeout),
          .is_stop_asked = is_stop_asked(),
          .last_checkpoint = saved_ > 0 ? "that of step " + std::to_string(saved_) : ""};
}

StepRequest TrainingLoop::request() const {
  const Recipe& recipe = run_.recipe;
  const TrainRecipe& train = recipe.train;
  const int64_t step = state_.step + 1;
  return {.learning_rate = learning_rate(recipe.schedule, recipe.optimizer.learning_rate, step, train.steps),
          .stop = is_stop_asked(),
          .saved = run_.checkpoints.done(),
          .measure = is_due(step, train.parameter_metrics.every)};
}

bool TrainingLoop::record(const StepOutcome* outcome, const MadeStep& made, bool stops) {
  const TrainRecipe& train = run_.recipe.train;
  TransformerTrainer& trainer = run_.trainer;
  FlightRecorder::own().set_work("metrics");
  RankStep own = meter_.end();  // the time of a later checkpoint counts for the step that waits for it
  if (made.own_counted > 0) own.loss = made.result.own_loss_sum / static_cast<double>(made.own_counted);
  if (outcome && outcome->optimizer_seconds) own.optimizer_seconds = *outcome->optimizer_seconds;
  const std::vector<RankStep> ranks = locate([&] { return meter_.gather(own); });

  StepMetrics metrics{state_.step, made.result.loss, made.result.grad_norm, made.asked.learning_rate};
  metrics.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  metrics.tokens = state_.num_samples * train.sequence_length;
  metrics.counted_tokens = made.num_counted;
  metrics.step_seconds = own.step_seconds;
  if (!train.phases.empty()) metrics.global_batch = made.global_batch;
  metrics.tokens_per_second = static_cast<double>(made.global_batch * train.sequence_length) / metrics.step_seconds;
  metrics.flops_per_rank = flops_per_token_ * metrics.tokens_per_second / static_cast<double>(run_.mesh.size());
  if (train.device_flops > 0) metrics.mfu = metrics.flops_per_rank / train.device_flops;
  summarize(ranks, meter_.groups(), metrics);
  if (outcome && trainer.options().loss_scale) metrics.loss_scale = outcome->loss_scale;
  const PartSums sums = outcome ? part_sums(trainer.options(), made.result.part_sums) : PartSums();
  if (outcome && trainer.options().shape.experts) metrics.experts = expert_metrics(trainer.options(), sums.routers);
  if (sums.z_loss) metrics.z_loss = *sums.z_loss / static_cast<double>(made.num_counted);
  metrics.skipped = !outcome || made.result.non_finite || made.result.outliers != 0;
  if (!outcome) {
    metrics.no_label = describe_samples(run_.data, state_.num_samples - made.global_batch, made.global_batch);
    metrics.loss_max = metrics.loss;  // no number
  } else if (made.result.non_finite) {
    metrics.non_finite = trainer.find_non_finite();
  } else if (metrics.skipped) {
    metrics.outlier = name_outliers(made.result.outliers);
  }
  skipped_.judge(metrics);
  // A run that stops on request writes its checkpoint at once and does not evaluate.
  bool has_ended = false;
  if (run_.evaluation && run_.evaluation->is_due(state_.step) && !stops) {
    FlightRecorder::own().set_work("evaluation");
    const auto asked = [&] { return is_stop_asked(); };
    metrics.evaluation = locate(
        [&] { return run_.evaluation->run_unless(trainer.parts(), run_.mesh, trainer.pipeline().links, asked); });
    has_ended = !metrics.evaluation;
    if (has_ended) say("the evaluation after step " + std::to_string(state_.step) + " was ended by a request to stop");
    meter_.begin();
  }
  if (!run_.journal) return has_ended;
  run_.journal->record(metrics);
  if (outcome && made.asked.measure) run_.journal->record(state_.step, trainer.read_parameters(*outcome));
  if (outcome && run_.prediction) {
    if (const std::string line = run_.prediction->observe(metrics.step_seconds); !line.empty()) {
      say(line);
      run_.prediction->write();
    }
  }
  if (const std::string line = stragglers_.note(ranks); !line.empty()) log_warning(line);
  return has_ended;
}

void TrainingLoop::advance_checkpoint() {
  const Phase phase({"the checkpoint before step " + std::to_string(step_), PhaseKind::Saving, step_});
  const StepMeter::Part part = meter_.checkpoint();
  FlightRecorder::own().set_work("checkpoint");
  report(run_.checkpoints.advance());
}

void TrainingLoop::save() {
  const Phase phase({"the checkpoint of step " + std::to_string(state_.step), PhaseKind::Saving, state_.step});
  const StepMeter::Part part = meter_.checkpoint();
  FlightRecorder::own().set_work("checkpoint");
  state_.num_skipped = skipped_.in_a_row();
  run_.trainer.write(state_);
  report(run_.checkpoints.finish());  // the previous checkpoint may not be durable yet
  agree(run_.mesh.world(), [&] {
    if (run_.journal) run_.journal->sync();
  });
  run_.checkpoints.save(state_);
}

void TrainingLoop::save_for_export() try {
  save();
  report(run_.checkpoints.finish());
} catch (const AgreedError& error) {
  if (run_.journal) log_error(error.what());
}

void TrainingLoop::report(const std::optional<WrittenCheckpoint>& written) {
  if (written) saved_ = written->step;
  if (written && run_.journal) run_.journal->announce(*written);
}

void TrainingLoop::say(const std::string& line) const {
  if (run_.journal) log_info(line);
}

std::string TrainingLoop::location() const {
  const std::string work = FlightRecorder::own().work();
  return "step " + std::to_string(step_) + (work.empty() ? "" : ", " + work);
}

template <class Action>
auto TrainingLoop::locate(const Action& action) const -> decltype(action()) try {
  return action();
} catch (const AgreedError&) {
  throw;
} catch (const std::exception& error) {
  throw std::runtime_error(location() + ": " + message_of(error));
}

}  // namespace meshtrain

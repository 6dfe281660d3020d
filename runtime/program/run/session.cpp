#include "runtime/program/run/session.h"

#include "context_parallel/attention_choice.h"
#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/files/shell_word.h"
#include "mesh/base/log.h"
#include "runtime/program/hf/export_model.h"
#include "runtime/program/launch/connect.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/program/run/run_directory.h"
#include "runtime/program/run/training_loop.h"
#include "runtime/program/telemetry/events.h"
#include "runtime/program/watch/flight_files.h"
#include "runtime/program/watch/phase.h"
#include "runtime/training/transformer/batch_growth.h"

namespace meshtrain {
namespace {

ModelSize size_of(TransformerTrainer& trainer) {
  ModelSize size;
  for (const Parameter* parameter : trainer.model().parameters()) {
    const int64_t count = c10::multiply_integers(parameter->global_shape);
    size.num_parameters += count;
    if (parameter->tensor.requires_grad()) size.num_trainable += count;
  }
  return size;
}

}  // namespace

Session::Session(const Recipe& asked, const Group& world, const RunOptions& options)
    : world_(world), options_(options), prepared_(asked, options, world.size(), &world) {
  // Collective: no rank can have failed alone before it.
  const auto pipeline_mesh = std::make_shared<const PipelineMesh>(mesh_, decisions_.shape.tie_word_embeddings);
  const ModelReplicas replicas = map_replicas(decisions_.sharding, *pipeline_mesh);
  if (prepared_.memory.is_warning) log_warning(prepared_.memory.text);
  memory_advice_.emplace([this] { return less_memory(recipe_, decisions_.layout, prepared_.request); });
  open_trainer(pipeline_mesh, replicas);
  host_lock_.emplace(folder_, world_);
}

void Session::open_trainer(std::shared_ptr<const PipelineMesh> pipeline_mesh, const ModelReplicas& replicas) {
  agree(world_, [&] {
    if (prepared_.forecast && recipe_.train.steps >= Prediction::kSteps && recipe_.train.phases.empty()) {
      prediction_ =
          std::make_unique<Prediction>(prepared_.forecast->step, mesh_, prepared_.request.hosts.ranks_per_host,
                                       device_context_.peak, RunDirectory::forecast_of(folder_));
    }
    trainer_ = std::make_unique<TransformerTrainer>(decisions_, std::move(pipeline_mesh), device_context_.device,
                                                    replicas, resumes_);
    if (mesh_.rank() != 0) return;
    directory_ = std::make_unique<RunDirectory>(folder_, options_.resumes());
    if (!options_.resumes()) return;
    // Searches again under the lock: another run may have written or removed checkpoints since the first search.
    const auto found = checkpoint_to_resume(prepared_.checkpoints, options_.resume_step);
    if (found.value_or("") == (resumes_ ? prepared_.resume->point.folder : "")) return;
    throw InputError("another run changed the checkpoints in " + prepared_.checkpoints.folder().string() +
                     " while this run started: start again");
  });
  keep_events_in(RunDirectory::events_of(folder_), [layout = decisions_.layout](int rank) {
    const std::vector<int64_t> coordinate = layout.coordinate(rank);
    std::vector<std::pair<std::string, int64_t>> named;
    for (size_t i = 0; i < coordinate.size(); ++i) named.emplace_back(layout.axes()[i].name, coordinate[i]);
    return named;
  });
  if (world_.size() > 1) keep_flights_in(folder_ / "flight", static_cast<int>(mesh_.rank()), world_.size());
}

void Session::resume() {
  ResumeCandidate candidate = std::exchange(prepared_.resume, {}).value_or(ResumeCandidate());
  std::error_code failed;
  const auto metrics = std::filesystem::status(RunDirectory::metrics_of(folder_), failed);
  CheckpointDisks disks(prepared_.checkpoints, world_,
                        {.resumed = candidate.point.folder,
                         .has_begun = metrics.type() != std::filesystem::file_type::not_found,
                         .other_folder = "another --run-dir"});
  if (resumes_) resumed_ = meshtrain::resume(std::move(candidate), *trainer_, world_);
  resumed_.set_aside = disks.settle(resumed_.state.step);  // before metrics are truncated
  checkpoints_.emplace(KeptCheckpoints{recipe_.checkpoint.keep_last, recipe_.checkpoint.keep_every}, std::move(disks),
                       std::move(prepared_.head), *trainer_, world_);
  if (const int64_t every = recipe_.checkpoint.every; prediction_ && every > 0 && device_context_.device.is_cpu()) {
    prediction_->count_copy(checkpoints_->copy_bytes(), every - resumed_.state.step % every);
  }
  const std::vector<std::string> hosts = gather_texts(world_, host_name());
  agree(world_, [&] {
    if (mesh_.rank() != 0) return;
    journal_ = std::make_unique<Journal>(recipe_, decisions_, hosts, std::move(directory_), resumed_.state.step);
    if (prediction_) prediction_->write();
  });
  // Only now, so that a run that was refused before has left its folder unchanged. Rank 0's journal has opened the log.
  if (!journal_) log_warnings_to(RunDirectory::log_of(folder_));
}

void Session::announce() {
  if (journal_) {
    if (!options_.note.empty()) say(options_.note);
    if (!threads_taken().empty()) say(threads_taken());
    if (const std::string stop = how_to_stop(); !stop.empty()) say(stop);
    if (!device_context_.device.is_cpu()) say("device " + device_context_.description);
    if (!device_context_.fallback.empty()) say(device_context_.fallback);
    journal_->announce(size_of(*trainer_), trainer_->fsdp());
    if (prediction_) say(prediction_->text());
    for (const Notice& notice : prepared_.notices) {
      if (notice.is_warning) log_warning(notice.line);
    }
    journal_->announce(*prepared_.data, samples_of_run(recipe_.train, resumed_.state), prepared_.evaluation.get());
    if (resumes_) {
      journal_->announce(resumed_);
    } else if (options_.resume) {
      journal_->announce_beginning();
    }
    if (resumed_.state.step == recipe_.train.steps)
      say("the checkpoint has all steps of train.steps: nothing is left to do");
  }
  if (recipe_.train.cuda_graph) record_graph();
  start_.reset();
}

void Session::record_graph() {
  std::string hindrance = StepGraph::hindrance(decisions_, device_context_.device,
                                               device_context_.make_graph != nullptr, trainer_->fsdp().is_offloaded());
  if (hindrance.empty() && decisions_.shape.adapter.dropout > 0) {
    hindrance = "adapter.dropout draws new numbers in each step";
  }
  if (hindrance.empty() && decisions_.shape.experts) {
    hindrance = "the model has experts, whose rows the host counts in the step";
  }
  if (hindrance.empty() && trainer_->pipeline().links != nullptr) {
    hindrance = "parallel.mesh has pp, whose ranks exchange messages in the step";
  }
  if (hindrance.empty() && trainer_->copies()) {
    hindrance = "parallel.fsdp.offload copies the optimizer's state between host and GPU in the step";
  }
  if (hindrance.empty() && !decisions_.batch.phases.empty()) {
    hindrance = "train.global_batch grows, and a graph has one number of micro-batches";
  }
  if (hindrance.empty() && decisions_.offload_activations) {
    hindrance = "train.offload_activations copies between host and GPU in the step";
  }
  if (hindrance.empty()) trainer_->use_graph(device_context_.make_graph());
  say("train.cuda_graph: " +
      (hindrance.empty() ? "steps are recorded as one graph" : "no graph, because " + hindrance));
}

RunEnd Session::train(const StopRequest& stop_request, std::chrono::steady_clock::time_point start) try {
  const TrainingState& state = resumed_.state;
  batches_.emplace(0, recipe_.train.steps - state.step, [&, next = state.num_samples](int64_t) mutable {
    BatchOptions batch = decisions_.batch;
    batch.global_batch = global_batch_after(batch, next);
    const int64_t first = std::exchange(next, next + batch.global_batch);
    return read_batch(*prepared_.data, batch, mesh_, trainer_->layout(), first,
                      decisions_.frozen_row ? std::nullopt : decisions_.shape.pad_token_id);
  });
  StepProfile profile(recipe_.train.profile, RunDirectory::traces_of(folder_), mesh_.rank(),
                      mesh_.world().coordinate_text() + " on " + host_name(), device_context_.device);
  const StepContext context{
      recipe_,        mesh_,        *prepared_.data, prepared_.evaluation.get(), *trainer_, *checkpoints_,    *batches_,
      journal_.get(), stop_request, start,           device_context_.peak,       profile,   prediction_.get()};
  const RunEnd end = TrainingLoop(context, state).run();
  if (journal_) journal_->account("checkpoint");  // the last one, which no step waits for
  if (journal_ && device_context_.peak) {
    for (const std::string& line : chosen_attention()) say("attention by " + line);
    say("GPU memory: tensors took " + std::to_string(device_context_.peak().allocated >> 20) + " MiB at most");
  }
  if (journal_) journal_->finish();
  return end;
} catch (const AgreedError&) {
  throw;
} catch (const std::exception& error) {  // an error of this rank alone, of any type
  throw RankError<std::runtime_error>(mesh_.world().coordinate_text() + ": " + message_of(error));
}

void Session::export_weights() try {
  if (recipe_.train.export_folder.empty()) return;
  const Phase phase({"the export to " + recipe_.train.export_folder.string(), PhaseKind::Export});
  const Progress progress("export to " + recipe_.train.export_folder.string());
  const CarriedOver carried = carried_over(recipe_);
  const std::string folder = export_model(trainer_->index(), trainer_->groups(), shape_to_export(recipe_), carried,
                                          mesh_, recipe_.train.export_folder);
  say("weights written to " + folder + describe(carried));
  if (journal_) journal_->account("export");
} catch (const InputError& error) {
  throw AgreedError(error.what());
}

void Session::close(RunEnd end) {
  if (end == RunEnd::Done) say(next_commands());
  if (journal_) journal_->end(end == RunEnd::Done ? "done" : "stopped");
}

std::string Session::next_commands() const {
  const std::string run = shell_word(folder_.string());
  std::string text = "done; next: meshtrain report " + run;
  const bool has_checkpoint = journal_ && !prepared_.checkpoints.steps().empty();
  if (has_checkpoint) text += ", meshtrain generate " + run;
  if (!recipe_.train.export_folder.empty())
    return text + ", meshtrain generate " + shell_word(recipe_.train.export_folder.string());
  return has_checkpoint ? text + ", meshtrain checkpoint export " + run + " FOLDER" : text;
}

void Session::say(const std::string& line) const {
  if (journal_) log_info(line);
}

}  // namespace meshtrain

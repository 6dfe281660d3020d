#include "runtime/program/run/resume.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "runtime/program/recipe/base_weights.h"
#include "runtime/program/recipe/changes.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/run/run_directory.h"
#include "runtime/program/run/run_files.h"
#include "runtime/program/telemetry/json_lines.h"
#include "runtime/program/watch/phase.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/training/checkpoint/damage.h"
#include "runtime/training/optimizer/schedule.h"
#include "runtime/training/trainer/saving.h"

namespace meshtrain {
namespace {

/// Returns true when `other` has the source of `key`, "data.mixture[0].loss_mask", too. compare_recipes() has reported
/// a missing source.
bool in_both(const std::string& key, const std::map<std::string, Fingerprint>& other) {
  if (key == kTokenizerKey) return false;  // a run needs it no more, once its tokens are there
  constexpr std::string_view kMixture = "data.mixture[";
  const size_t end = key.starts_with(kMixture) ? key.find(']') + 1 : key.find('.');
  return other.contains(key.substr(0, end) + ".tokens");
}

std::vector<std::string> other_data(const CheckpointHead& own, const CheckpointHead& saved) {
  std::vector<std::string> differences;
  for (const auto& [key, print] : own.data) {
    const auto found = saved.data.find(key);
    if ((found != saved.data.end() && found->second == print) || !in_both(key, saved.data)) continue;
    differences.push_back(key + ": a file of " + describe(print) + ", was " +
                          (found == saved.data.end() ? "none" : "one of " + describe(found->second)));
  }
  for (const auto& [key, print] : saved.data) {
    if (!own.data.contains(key) && in_both(key, own.data))
      differences.push_back(key + ": none, was a file of " + describe(print));
  }
  return differences;
}

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "; ") + line;
  return text;
}

/// Returns advice on the damaged checkpoint in `folder`.
std::string damage_advice(const std::filesystem::path& folder) {
  const std::string others = CheckpointFolder(folder.parent_path()).describe_others(folder);
  return others.empty()
             ? "; the folder has no other checkpoint: begin another run with --run-dir"
             : "; the folder also has checkpoints of " + others +
                   ": resume from one of them with --resume-step N, or restore the damaged one from a backup";
}

/// Returns the manifest in `folder`. Reports a run in use before damage, since that run may be removing the checkpoint.
Manifest read_to_resume(const std::filesystem::path& folder) try {
  return read_run_manifest(folder);
} catch (const DamagedCheckpoint& error) {
  RunDirectory::refuse_use(folder.parent_path().parent_path());
  throw InputError(error.what() + damage_advice(folder));
}

/// Returns the changes of the recipe that are allowed. Throws InputError when other keys differ.
std::vector<std::string> check_same_run(const std::filesystem::path& folder, const CheckpointHead& own,
                                        const CheckpointHead& saved, int64_t num_steps) {
  const bool trained = saved.state.step > 0;
  RecipeChanges changes = compare_recipes(saved.recipe, own.recipe, trained);
  std::vector<std::string>& contradictions = changes.contradictions;
  if (trained) {
    const std::vector<std::string> data = other_data(own, saved);
    contradictions.insert(contradictions.end(), data.begin(), data.end());
  }
  // A parameter that was trained and is frozen now would be neither in the next checkpoint nor in the base.
  const Recipe now = parse_recipe(own.recipe);
  if (trained && now.model.shape.adapter && now.train.freeze != parse_recipe(saved.recipe).train.freeze) {
    contradictions.push_back(
        "train.freeze: with adapters it determines the contents of checkpoints, and must not change");
  }
  if (const std::string base = describe_other_base(own, saved); !base.empty()) contradictions.push_back(base);
  if (!contradictions.empty()) {
    throw InputError("the recipe contradicts the checkpoint " + folder.string() + ": " + joined_lines(contradictions) +
                     ": use the recipe of that run, or begin another run with --run-dir");
  }
  if (saved.state.step > num_steps) {
    throw InputError(
        "train.steps: " + std::to_string(num_steps) + ", but " + folder.string() +
        " is of a later step: set more train.steps, or resume from an earlier checkpoint with --resume-step");
  }
  return changes.allowed;
}

/// Returns a learning rate for people: "0.000375".
std::string rate_text(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", rate);
  return text;
}

/// Returns a line when the checkpoint is of a version whose schedules fell one step earlier, and that changes steps
/// which are still to be made; else nothing.
std::string changed_schedule(const CheckpointHead& own, const CheckpointHead& saved, int64_t num_steps) {
  const ScheduleOptions schedule = parse_recipe(own.recipe).schedule;
  const bool falls = schedule.name != Schedule::Constant && schedule.min_ratio < 1;
  const int64_t done = saved.state.step;
  if (saved.versions.contains(kScheduleVersion) || !falls || done == 0 || done == num_steps) return "";
  return "schedule.name: " + word_of(schedule_words(), schedule.name) +
         " falls one step later than in the version that wrote the checkpoint: the last step's learning rate is above "
         "schedule.min_ratio, and that of earlier steps is a little higher than before";
}

/// Returns a warning when train.steps or schedule.total_steps differ from those of the checkpoint, and so give the next
/// step another learning rate; else an empty text.
std::string moved_schedule(const CheckpointHead& own, const CheckpointHead& saved) {
  const Recipe now = parse_recipe(own.recipe), before = parse_recipe(saved.recipe);
  const int64_t next = saved.state.step + 1;
  const int64_t planned = before.schedule.total_steps.value_or(before.train.steps);
  const int64_t spread = now.schedule.total_steps.value_or(now.train.steps);
  if (saved.state.step == 0 || planned == spread || next > now.train.steps) return "";
  const double peak = now.optimizer.learning_rate;
  ScheduleOptions earlier = now.schedule;
  earlier.total_steps = planned;
  const double rate = learning_rate(now.schedule, peak, next, spread),
               was = learning_rate(earlier, peak, next, planned);
  if (rate == was) return "";
  const bool can_keep = next <= planned || now.schedule.min_ratio > 0;
  return "schedule.name: " + word_of(schedule_words(), now.schedule.name) + " is spread over " +
         (now.schedule.total_steps ? "schedule.total_steps" : "train.steps") + ", now " + std::to_string(spread) +
         " instead of " + std::to_string(planned) + ": step " + std::to_string(next) + " gets a learning rate of " +
         rate_text(rate) + " instead of " + rate_text(was) +
         (can_keep ? "; schedule.total_steps: " + std::to_string(planned) + " keeps the earlier schedule" : "");
}

}  // namespace

CheckpointHead describe_run(const Recipe& recipe, const MeshLayout& layout) {
  CheckpointHead head;
  head.recipe = to_yaml(recipe);
  head.mesh = layout.describe();
  for (const auto& [key, path] : data_files(recipe.data)) head.data[key] = fingerprint(path);
  if (const auto print = base_fingerprint(recipe)) head.data[kBaseKey] = *print;
  const std::string tokenizer = tokenizer_of(recipe);
  if (tokenizer.empty() || tokenizer == "bytes") return head;
  try {
    const std::optional<uint64_t> checksum = checksum_of_text(tokenizer_fingerprint(tokenizer));
    if (checksum) head.data[kTokenizerKey] = {0, *checksum};
  } catch (const InputError&) {  // no step needs it; describe_data() says so
  }
  return head;
}

std::optional<std::filesystem::path> checkpoint_to_resume(const CheckpointFolder& checkpoints,
                                                          const std::optional<int64_t>& step) {
  const std::vector<int64_t> steps = checkpoints.steps();
  if (!step && steps.empty()) return std::nullopt;
  if (!step) return checkpoints.step(steps.back());
  if (std::find(steps.begin(), steps.end(), *step) != steps.end()) return checkpoints.step(*step);
  const std::string there = checkpoints.describe_others({});
  throw InputError("--resume-step " + std::to_string(*step) + ": " + checkpoints.step(*step).string() +
                   " does not exist; " +
                   (there.empty() ? "there are no checkpoints" : "there are checkpoints of " + there));
}

void check_beginning(const std::filesystem::path& run, int64_t every) {
  const std::filesystem::path metrics = RunDirectory::metrics_of(run);
  const int64_t last = every == 0 ? 0 : last_step_in(metrics);
  if (last <= 2 * every) return;
  throw InputError("--resume: " + metrics.string() + " has steps up to " + std::to_string(last) +
                   ", but there is no checkpoint in " + RunDirectory::checkpoints_of(run).string() +
                   ": mount the disk with the checkpoints, or choose another --run-dir to begin at step 1");
}

std::string read_saved_recipe(const std::filesystem::path& folder) {
  return read_to_resume(folder).head.recipe;
}

ResumeCandidate resume_candidate(const std::filesystem::path& folder, const CheckpointHead& own, int64_t num_steps) {
  const Phase phase({"the resume from a checkpoint", PhaseKind::Resume});
  Manifest manifest = read_to_resume(folder);
  const CheckpointHead& saved = manifest.head;
  std::vector<std::string> changes = check_same_run(folder, own, saved, num_steps);
  const std::filesystem::path hf = parse_recipe(own.recipe).model.hf;
  std::error_code ignored;
  if (!hf.empty() && !std::filesystem::exists(hf / "config.json", ignored)) {
    changes.push_back("model.hf: " + hf.string() + " no longer exists: the model is read from the checkpoint");
  }
  const std::string schedule = changed_schedule(own, saved, num_steps);
  if (!schedule.empty()) changes.push_back(schedule);
  return {{saved.state, folder, std::move(changes), moved_schedule(own, saved)}, std::move(manifest)};
}

std::string describe_set_aside(const std::vector<int64_t>& steps) {
  if (steps.empty()) return "";
  std::string list;
  for (const int64_t step : steps) list += (list.empty() ? "" : ", ") + std::to_string(step);
  return (steps.size() == 1 ? "the checkpoint of step " + list + ", which is later, is"
                            : "the checkpoints of steps " + list + ", which are later, are") +
         " set aside as abandoned-step-...";
}

ResumePoint resume(ResumeCandidate candidate, Trainer& trainer, const Group& world) {
  const auto start = std::chrono::steady_clock::now();
  const Phase phase({"the resume from a checkpoint", PhaseKind::Resume});
  ResumePoint resumed = std::move(candidate.point);
  resumed.folder = broadcast_text(world, resumed.folder.string());
  resumed.state = load_checkpoint(resumed.folder, candidate.manifest, trainer, world, damage_advice);
  resumed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return resumed;
}

}  // namespace meshtrain

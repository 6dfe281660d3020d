#include "runtime/program/run/run_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/output_file.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"

namespace meshtrain {
namespace {

// Names of files in an older version and now.
constexpr std::pair<const char*, const char*> kOlderNames[] = {
    {"log.txt", "console.log"}, {"plan.yaml", "decisions.yaml"}, {"plan.json", "forecast.json"}};

bool holds_run(const std::filesystem::path& folder) {
  return std::filesystem::exists(RunDirectory::metrics_of(folder)) ||
         !CheckpointFolder(RunDirectory::checkpoints_of(folder)).steps().empty();
}

InputError in_use(const std::filesystem::path& folder) {
  return InputError("the run directory " + folder.string() + " is in use by another run; choose another --run-dir");
}

}  // namespace

void RunDirectory::refuse_other_run(const std::filesystem::path& folder) {
  if (!holds_run(folder)) return;
  throw InputError("the run directory " + folder.string() +
                   " holds a run; continue it with --resume, choose another --run-dir, or remove it");
}

bool RunDirectory::is_own(const std::string& name) {
  static const std::set<std::string> own = {
      "lock",          "console.log", "metrics.jsonl",  "events.jsonl", "goodput.jsonl", "parameters.jsonl",
      "forecast.json", "recipe.yaml", "decisions.yaml", "hosts.json",   "tensorboard",   "traces",
      "checkpoints",   "flight"};
  return own.contains(name) || std::ranges::any_of(kOlderNames, [&](const auto& names) { return name == names.first; });
}

void RunDirectory::refuse_use(const std::filesystem::path& folder) {
  const OpenedFile file = open_locked(folder / "lock", O_RDWR | O_CLOEXEC, 0);
  if (file.descriptor < 0) return;
  ::close(file.descriptor);
  if (file.outcome == LockOutcome::Taken) throw in_use(folder);
}

RunDirectory::RunDirectory(std::filesystem::path folder, bool resume) : folder_(std::move(folder)) {
  make_folders(folder_);
  const bool unlocked = !std::filesystem::exists(folder_ / "lock");
  if (unlocked && !resume) refuse_other_run(folder_);  // creates no lock file
  lock_.emplace(folder_ / "lock");
  if (lock_->is_taken()) throw in_use(folder_);
  if (!resume) refuse_other_run(folder_);
}

std::filesystem::path RunDirectory::folder_of(const Recipe& recipe, const std::filesystem::path& asked) {
  if (!asked.empty()) return asked;
  std::error_code none;
  const std::filesystem::path folder = recipe.file.parent_path();
  const bool is_saved =
      recipe.file.filename() == "recipe.yaml" &&
      (std::filesystem::exists(folder / "decisions.yaml", none) || std::filesystem::exists(folder / "plan.yaml", none));
  return is_saved ? std::filesystem::relative(folder) : std::filesystem::path("runs") / recipe.name;
}

void RunDirectory::rename_older_files() const {
  std::error_code error;
  for (const auto& [older, now] : kOlderNames) {
    if (std::filesystem::is_regular_file(folder_ / older, error) && !std::filesystem::exists(folder_ / now, error)) {
      std::filesystem::rename(folder_ / older, folder_ / now, error);
    }
  }
}

void RunDirectory::write(const std::string& recipe, const std::string& decisions,
                         const std::vector<std::string>& hosts) const {
  write_atomically(folder_ / "recipe.yaml", recipe);
  write_atomically(folder_ / "decisions.yaml", decisions);
  write_atomically(folder_ / "hosts.json", nlohmann::json({{"hosts", hosts}}).dump() + "\n");
}

}  // namespace meshtrain

#include "runtime/run/run_directory.h"

#include <nlohmann/json.hpp>

#include "mesh/error.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/files/output_file.h"

namespace meshtrain {
namespace {

InputError holds_a_run(const std::filesystem::path& folder) {
  return InputError("the run directory " + folder.string() +
                    " holds a run; continue it with --resume, choose another --run-dir, or remove it");
}

bool holds_run(const RunDirectory& directory) {
  return std::filesystem::exists(directory.metrics()) || !CheckpointFolder(directory.checkpoints()).steps().empty();
}

}  // namespace

RunDirectory::RunDirectory(std::filesystem::path folder, bool resume) : folder_(std::move(folder)) {
  make_folders(folder_);
  const bool unlocked = !std::filesystem::exists(folder_ / "lock");
  if (unlocked && !resume && holds_run(*this)) throw holds_a_run(folder_);  // creates no lock file
  lock_.emplace(folder_ / "lock");
  if (lock_->is_taken()) {
    throw InputError("the run directory " + folder_.string() + " is in use by another run; choose another --run-dir");
  }
  if (!resume && holds_run(*this)) throw holds_a_run(folder_);
}

std::filesystem::path RunDirectory::folder_of(const Recipe& recipe, const std::filesystem::path& asked) {
  return asked.empty() ? std::filesystem::path("runs") / recipe.name : asked;
}

void RunDirectory::write(const std::string& recipe, const std::string& plan,
                         const std::vector<std::string>& hosts) const {
  write_whole(folder_ / "recipe.yaml", recipe);
  write_whole(folder_ / "plan.yaml", plan);
  write_whole(folder_ / "hosts.json", nlohmann::json({{"hosts", hosts}}).dump() + "\n");
}

}  // namespace meshtrain

#include "runtime/run/checkpoint_disks.h"

#include <algorithm>
#include <sstream>
#include <system_error>

#include "mesh/agree.h"
#include "mesh/error.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

void remove_all(const std::vector<fs::path>& folders) {
  std::error_code ignored;  // what stays is removed by the run that resumes
  for (const fs::path& folder : folders) fs::remove_all(folder, ignored);
}

std::string to_text(const std::vector<int64_t>& steps) {
  std::string text;
  for (const int64_t step : steps) text += " " + std::to_string(step);
  return text;
}

std::vector<int64_t> read_steps(std::istream& text) {
  std::vector<int64_t> steps;
  for (int64_t step = 0; text >> step;) steps.push_back(step);
  return steps;
}

/// False where it cannot be told.
bool lacks_manifest(const fs::path& checkpoint) {
  std::error_code failed;
  return fs::status(checkpoint / "manifest.json", failed).type() == fs::file_type::not_found;
}

}  // namespace

CheckpointDisks::CheckpointDisks(CheckpointFolder folder, const Group& world, const fs::path& resumed)
    : folder_(std::move(folder)), world_(world.with_purpose("checkpoint")), hosts_(HostMap::of(world_)) {
  std::string text;
  agree(world_, [&] {
    if (world_.rank() != 0) return;
    const std::vector<std::string> owners = folder_.owners();
    const std::string name = resumed.empty() ? "-" : resumed.filename().string();
    text = (owners.empty() ? random_id() : owners.front()) + " " + random_id() + " " + name + to_text(folder_.steps());
  });
  std::istringstream words(broadcast_text(world_, text));
  std::string name;
  words >> run_ >> attempt_ >> name;
  steps_ = read_steps(words);
  agree(world_, [&] {
    if (acts()) check_owner(name == "-" ? "" : name);
  });
}

void CheckpointDisks::check_owner(const std::string& resumed) const {
  const std::vector<std::string> owners = folder_.owners();
  std::string found;
  for (const std::string& owner : owners) {
    if (owner != run_) found = "of run " + owner + ", this is run " + run_;
  }
  std::error_code failed;
  const bool is_resumed = !resumed.empty() && fs::is_directory(folder_.folder() / resumed, failed);
  if (owners.empty() && !is_resumed && !folder_.steps().empty()) {  // an older version wrote no id
    found = "of a run without an id, " + (resumed.empty() ? "this run begins" : resumed + " not among them");
  }
  if (found.empty()) return;
  throw InputError(world_.place() + " on " + host_name() + ": " + folder_.folder().string() +
                   " holds checkpoints of another run (" + found +
                   "): move or remove that folder on that host, or choose another --run-dir");
}

void CheckpointDisks::settle(int64_t step) const {
  if (!acts()) return;
  folder_.clean();
  const std::vector<std::string> owners = folder_.owners();
  if (std::find(owners.begin(), owners.end(), run_) != owners.end()) {
    // Rank 0's host has not given them their names yet, or has taken them away already.
    std::vector<int64_t> parts;
    for (const int64_t own : folder_.steps()) {
      const bool is_listed = std::find(steps_.begin(), steps_.end(), own) != steps_.end();
      if (!is_listed && lacks_manifest(folder_.step(own))) parts.push_back(own);
    }
    remove_all(folder_.retire(parts, attempt_));
  }
  folder_.abandon_after(step);
}

void CheckpointDisks::begin(int64_t step) {
  agree(world_, [&] {
    if (!acts()) return;
    if (!is_claimed_) folder_.claim(run_);
    is_claimed_ = true;
    folder_.begin(step, attempt_);
  });
}

void CheckpointDisks::complete(int64_t step) {
  const auto rename = [&] { folder_.complete(step, attempt_); };
  if (hosts_.num_hosts() > 1) {
    agree(world_, [&] {
      if (acts() && !has_rank_0()) rename();
    });
  }
  agree(world_, [&] {
    if (world_.rank() == 0) rename();
  });
}

void CheckpointDisks::retire(int64_t keep_last, int64_t keep_every) {
  if (removal_.valid()) removal_.wait();
  std::vector<int64_t> steps;
  std::vector<fs::path> folders;
  agree(world_, [&] {
    if (world_.rank() != 0) return;
    steps = folder_.outdated(keep_last, keep_every);
    folders = folder_.retire(steps, attempt_);
  });
  if (hosts_.num_hosts() > 1) {
    std::istringstream text(broadcast_text(world_, to_text(steps)));
    steps = read_steps(text);
    agree(world_, [&] {
      if (acts() && !has_rank_0()) folders = folder_.retire(steps, attempt_);
    });
  }
  removal_ = std::async(std::launch::async, remove_all, folders);
}

void CheckpointDisks::remove(int64_t step) const {
  if (acts()) remove_all({partial(step)});
}

}  // namespace meshtrain

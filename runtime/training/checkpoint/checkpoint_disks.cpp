#include "runtime/training/checkpoint/checkpoint_disks.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <system_error>
#include <utility>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/log.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

void remove_all(const std::vector<fs::path>& folders) {
  std::error_code ignored;  // the run that resumes removes the folders that remain
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

bool contains(const std::vector<int64_t>& steps, int64_t one) {
  return std::find(steps.begin(), steps.end(), one) != steps.end();
}

/// Returns true when the checkpoint certainly has no manifest; false on errors.
bool lacks_manifest(const fs::path& checkpoint) {
  std::error_code failed;
  return fs::status(checkpoint / "manifest.json", failed).type() == fs::file_type::not_found;
}

}  // namespace

CheckpointDisks::CheckpointDisks(CheckpointFolder folder, const Group& world, DiskOptions options)
    : folder_(std::move(folder)),
      world_(world.with_purpose("checkpoint")),
      options_(std::move(options)),
      hosts_(HostMap::of(world_)) {
  std::string text;
  agree(world_, [&] {
    if (world_.rank() != 0) return;
    const std::vector<std::string> owners = folder_.owners();
    const std::string name = options_.resumed.empty() ? "-" : options_.resumed.filename().string();
    const bool is_known = !owners.empty() && (options_.has_begun || !folder_.steps().empty());
    text = (is_known ? owners.front() : random_id()) + " " + random_id() + " " + name + to_text(folder_.steps()) +
           " |" + to_text(folder_.abandoned());
  });
  std::istringstream words(broadcast_text(world_, text));
  std::string name;
  words >> run_ >> attempt_ >> name;
  steps_ = read_steps(words);
  words.clear();
  words.ignore(std::numeric_limits<std::streamsize>::max(), '|');
  abandoned_ = read_steps(words);
  agree(world_, [&] {
    if (acts()) check_owner(name == "-" ? "" : name);
  });
}

void CheckpointDisks::check_owner(const std::string& resumed) const {
  const std::vector<std::string> owners = folder_.owners();
  std::string found;
  for (const std::string& owner : owners) {
    if (owner != run_) found = "of run " + owner + ", but this is run " + run_;
  }
  std::error_code failed;
  const bool is_resumed = !resumed.empty() && fs::is_directory(folder_.folder() / resumed, failed);
  if (owners.empty() && !is_resumed && !folder_.steps().empty()) {  // an older version wrote no id
    found = "of a run without an id, " +
            (resumed.empty() ? "but this is a new run" : "and " + resumed + " is not among them");
  }
  if (found.empty()) return;
  throw InputError(world_.coordinate_text() + " on " + host_name() + ": " + folder_.folder().string() +
                   " holds checkpoints of another run (" + found +
                   "): move or remove that folder on that host, or choose " + options_.other_folder);
}

std::vector<int64_t> CheckpointDisks::settle(int64_t step) {
  for_each_host([&] { settle_host(step); });
  const auto first = std::ranges::upper_bound(steps_, step);
  std::vector<int64_t> later(first, steps_.end());
  steps_.erase(first, steps_.end());
  return later;
}

void CheckpointDisks::for_each_host(const std::function<void()>& action) const {
  agree(world_, [&] {
    if (world_.rank() == 0) action();
  });
  if (hosts_.num_hosts() == 1) return;
  agree(world_, [&] {
    if (acts() && !has_rank_0()) action();
  });
}

void CheckpointDisks::settle_host(int64_t step) const {
  folder_.clean();
  const std::vector<std::string> owners = folder_.owners();
  const bool is_ours = std::find(owners.begin(), owners.end(), run_) != owners.end();
  std::vector<int64_t> parts, later;
  for (const int64_t own : folder_.steps()) {
    if (own > step && (contains(steps_, own) || contains(abandoned_, own))) {
      later.push_back(own);
    } else if (is_ours && !contains(steps_, own) && lacks_manifest(folder_.step(own))) {
      parts.push_back(own);  // rank 0's host has not named this checkpoint yet, or has removed it already
    } else if (own > step) {
      later.push_back(own);
    }
  }
  remove_all(folder_.retire(parts, attempt_).folders);
  folder_.abandon(later);
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
  std::vector<fs::path> replaced;
  if (contains(steps_, step)) for_each_host([&] { replaced = folder_.abandon({step}); });
  const auto rename = [&] { folder_.complete(step, attempt_); };
  if (hosts_.num_hosts() > 1) {
    agree(world_, [&] {
      if (acts() && !has_rank_0()) rename();
    });
  }
  agree(world_, [&] {
    if (world_.rank() == 0) rename();
  });
  if (!replaced.empty()) removal_ = std::async(std::launch::async, remove_all, replaced);
}

std::vector<fs::path> CheckpointDisks::retire_on_host(std::vector<int64_t>& steps) {
  RetiredCheckpoints retired = folder_.retire(steps, attempt_);
  steps = std::move(retired.steps);
  if (!retired.problem.empty() && !std::exchange(has_warned_, true)) {
    log_warning("on " + host_name() + " cannot remove an old checkpoint: " + retired.problem);
  }
  return std::move(retired.folders);
}

void CheckpointDisks::retire(int64_t keep_last, int64_t keep_every) {
  if (removal_.valid()) removal_.wait();
  std::vector<int64_t> steps;
  std::vector<fs::path> folders;
  agree(world_, [&] {
    if (world_.rank() != 0) return;
    steps = folder_.outdated(keep_last, keep_every);
    folders = retire_on_host(steps);
  });
  if (hosts_.num_hosts() > 1) {
    std::istringstream text(broadcast_text(world_, to_text(steps)));
    steps = read_steps(text);
    agree(world_, [&] {
      if (acts() && !has_rank_0()) folders = retire_on_host(steps);
    });
  }
  removal_ = std::async(std::launch::async, remove_all, folders);
}

void CheckpointDisks::remove(int64_t step) const {
  if (acts()) remove_all({partial(step)});
}

}  // namespace meshtrain

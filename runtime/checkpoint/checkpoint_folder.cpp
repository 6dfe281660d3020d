#include "runtime/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "runtime/data/output_file.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr const char* kPartial = ".tmp";
constexpr const char* kRetired = ".removed";

std::string name_of(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "%s%08lld", kPrefix, static_cast<long long>(step));
  return name;
}

/// "step-00000012" -> 12
std::optional<int64_t> step_of(const std::string& name) {
  constexpr size_t kMostDigits = 18, kPrefixLength = 5;
  if (!name.starts_with(kPrefix) || name.size() > kPrefixLength + kMostDigits) return std::nullopt;
  const std::string digits = name.substr(kPrefixLength);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int64_t step = std::stoll(digits);
  return name == name_of(step) ? std::optional(step) : std::nullopt;
}

/// False when there is no `from`: another rank has renamed it.
bool rename_folder(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  throw std::runtime_error("cannot rename " + from.string() + " to " + to.filename().string() + ": " +
                           std::strerror(errno));
}

/// None when there is no such folder, nor could be. One that cannot be read is not an empty one.
std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    paths.push_back(at->path());
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
    throw std::runtime_error("cannot read the checkpoints in " + folder.string() + ": " + error.message());
  }
  return paths;
}

}  // namespace

bool has_name_of_step(const fs::path& folder) {
  return step_of((folder.has_filename() ? folder : folder.parent_path()).filename().string()).has_value();
}

fs::path CheckpointFolder::step(int64_t step) const {
  return folder_ / name_of(step);
}

fs::path CheckpointFolder::partial(int64_t step) const {
  return folder_ / (name_of(step) + kPartial);
}

std::vector<int64_t> CheckpointFolder::steps() const {
  std::vector<int64_t> steps;
  for (const fs::path& path : entries(folder_)) {
    if (const auto step = step_of(path.filename().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string CheckpointFolder::describe_others(const fs::path& but) const {
  std::string text;
  int64_t count = 0;
  for (const int64_t other : steps()) {
    if (step(other).filename() == but.filename()) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(other);
    ++count;
  }
  return text.empty() ? "" : (count == 1 ? "step " : "steps ") + text;
}

void CheckpointFolder::clean() const {
  std::error_code ignored;  // what stays is in nobody's way
  for (const fs::path& path : entries(folder_)) {
    const std::string ending = path.extension().string();
    if ((ending == kPartial || ending == kRetired) && step_of(path.stem().string())) fs::remove_all(path, ignored);
  }
}

void CheckpointFolder::complete(int64_t step) const {
  if (!rename_folder(partial(step), this->step(step))) return;
  sync_folder(folder_);
  sync_folder(folder_.parent_path());  // where the first one made this folder
}

bool CheckpointFolder::abandon_after(int64_t step) const {
  bool any = false;
  std::error_code ignored;
  for (const int64_t later : steps()) {
    if (later <= step) continue;
    const std::string name = "abandoned-" + name_of(later);
    fs::path away = folder_ / name;
    for (int n = 2; fs::exists(away, ignored); ++n) away = folder_ / (name + "-" + std::to_string(n));
    any = rename_folder(this->step(later), away) || any;
  }
  if (any) sync_folder(folder_);
  return any;
}

std::vector<fs::path> CheckpointFolder::retire(int64_t keep_last, int64_t keep_every) const {
  std::vector<fs::path> retired;
  const std::vector<int64_t> all = steps();
  const int64_t num_old = keep_last == 0 ? 0 : static_cast<int64_t>(all.size()) - keep_last;
  for (int64_t i = 0; i < num_old; ++i) {
    const int64_t old = all[static_cast<size_t>(i)];
    if (keep_every != 0 && old % keep_every == 0) continue;
    const fs::path away = folder_ / (name_of(old) + kRetired);
    if (rename_folder(step(old), away)) retired.push_back(away);
  }
  return retired;
}

}  // namespace meshtrain

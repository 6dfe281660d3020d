#include "runtime/training/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <system_error>

#include "mesh/base/files/output_file.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr const char* kPartial = ".tmp";
constexpr const char* kRetired = ".removed";
constexpr const char* kOwner = "run-";
constexpr const char* kAbandoned = "abandoned-";

std::string name_of(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "%s%08lld", kPrefix, static_cast<long long>(step));
  return name;
}

/// Returns 12 for "step-00000012".
std::optional<int64_t> step_of(const std::string& name) {
  constexpr size_t kMostDigits = 18, kPrefixLength = 5;
  if (!name.starts_with(kPrefix) || name.size() > kPrefixLength + kMostDigits) return std::nullopt;
  const std::string digits = name.substr(kPrefixLength);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int64_t step = std::stoll(digits);
  return name == name_of(step) ? std::optional(step) : std::nullopt;
}

std::string cannot_rename(const fs::path& from, const fs::path& to, int error) {
  return "cannot rename " + from.string() + " to " + to.filename().string() + ": " + std::strerror(error);
}

/// Returns true for the errors of rename() when `from` is gone. A file server that has renamed it returns them too,
/// when its first answer was lost and the request is repeated.
bool is_gone(int error) {
  return error == ENOENT || error == ESTALE;
}

/// Renames a folder. Returns false when there is no `from`: another host has renamed it.
bool rename_folder(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return true;
  const int error = errno;
  std::error_code failed;
  if (is_gone(error) && fs::status(from, failed).type() == fs::file_type::not_found) return false;
  throw std::runtime_error(cannot_rename(from, to, error));
}

/// Lists a folder; one that does not exist has no entries. Throws for a folder that cannot be read, a file in its
/// place, and a link to a disk that is not mounted: none of them means that there are no checkpoints.
std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    paths.push_back(at->path());
  }
  if (!error) return paths;
  std::error_code unknown;
  const fs::file_type type = fs::symlink_status(folder, unknown).type();
  const bool may_be_absent = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (may_be_absent && type == fs::file_type::not_found) return {};
  const std::string link = type == fs::file_type::symlink ? ", the target of this link" : "";
  throw std::runtime_error("cannot read the checkpoints in " + folder.string() + ": " + error.message() + link);
}

}  // namespace

bool has_name_of_step(const fs::path& folder) {
  return step_of((folder.has_filename() ? folder : folder.parent_path()).filename().string()).has_value();
}

std::string random_id() {
  std::random_device device;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%08x%08x", device(), device());
  return digits;
}

fs::path CheckpointFolder::step(int64_t step) const {
  return folder_ / name_of(step);
}

fs::path CheckpointFolder::partial(int64_t step, const std::string& attempt) const {
  return folder_ / (name_of(step) + "." + attempt + kPartial);
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

std::vector<std::string> CheckpointFolder::owners() const {
  std::vector<std::string> ids;
  for (const fs::path& path : entries(folder_)) {
    const std::string name = path.filename().string();
    if (name.starts_with(kOwner)) ids.push_back(name.substr(std::strlen(kOwner)));
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

void CheckpointFolder::claim(const std::string& id) const {
  make_folders(folder_);
  const fs::path file = folder_ / (kOwner + id);
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0 || ::close(descriptor) != 0) {
    throw std::runtime_error("cannot write " + file.string() + ": " + std::strerror(errno));
  }
  sync_folder(folder_);
}

void CheckpointFolder::clean() const {
  std::error_code ignored;  // leftovers do no harm
  for (const fs::path& path : entries(folder_)) {
    const std::string name = path.filename().string(), ending = path.extension().string();
    if ((ending == kPartial || ending == kRetired) && step_of(name.substr(0, name.find('.')))) {
      fs::remove_all(path, ignored);
    }
  }
}

void CheckpointFolder::begin(int64_t step, const std::string& attempt) const {
  const fs::path folder = partial(step, attempt);
  if (::mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST) return;
  throw std::runtime_error("cannot make " + folder.string() + ": " + std::strerror(errno));
}

void CheckpointFolder::complete(int64_t step, const std::string& attempt) const {
  const fs::path from = partial(step, attempt), to = this->step(step);
  if (!rename_folder(from, to)) {
    sync_folder(folder_);  // which refreshes the view of a folder that another host has changed
    std::error_code failed;
    if (!fs::is_directory(to, failed)) throw std::runtime_error(cannot_rename(from, to, ENOENT));
  }
  sync_folder(folder_);
}

std::vector<int64_t> CheckpointFolder::abandoned() const {
  std::vector<int64_t> steps;
  for (const fs::path& path : entries(folder_)) {
    const std::string name = path.filename().string();
    if (!name.starts_with(kAbandoned)) continue;
    const size_t begin = std::strlen(kAbandoned), number = name.find('-', begin + std::strlen(kPrefix));
    if (const auto step = step_of(name.substr(begin, number - begin))) steps.push_back(*step);
  }
  return steps;
}

std::vector<fs::path> CheckpointFolder::abandon(const std::vector<int64_t>& steps) const {
  std::vector<fs::path> renamed;
  std::error_code ignored;
  for (const int64_t later : steps) {
    const std::string name = kAbandoned + name_of(later);
    fs::path away = folder_ / name;
    for (int n = 2; fs::exists(away, ignored); ++n) away = folder_ / (name + "-" + std::to_string(n));
    if (rename_folder(this->step(later), away)) renamed.push_back(away);
  }
  if (!renamed.empty()) sync_folder(folder_);
  return renamed;
}

std::vector<int64_t> CheckpointFolder::outdated(int64_t keep_last, int64_t keep_every) const {
  std::vector<int64_t> outdated;
  const std::vector<int64_t> all = steps();
  const int64_t num_old = keep_last == 0 ? 0 : static_cast<int64_t>(all.size()) - keep_last;
  for (int64_t i = 0; i < num_old; ++i) {
    const int64_t old = all[static_cast<size_t>(i)];
    if (keep_every == 0 || old % keep_every != 0) outdated.push_back(old);
  }
  return outdated;
}

RetiredCheckpoints CheckpointFolder::retire(const std::vector<int64_t>& steps, const std::string& attempt) const {
  RetiredCheckpoints retired;
  std::error_code failed;
  for (const int64_t old : steps) {
    const fs::path away = folder_ / (name_of(old) + "." + attempt + kRetired);
    try {
      rename_folder(step(old), away);
    } catch (const std::runtime_error& error) {
      retired.problem = error.what();
      continue;
    }
    retired.steps.push_back(old);
    if (fs::exists(away, failed)) retired.folders.push_back(away);
  }
  if (!retired.folders.empty()) sync_folder(folder_);
  return retired;
}

}  // namespace meshtrain

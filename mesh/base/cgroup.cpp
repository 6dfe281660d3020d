#include "mesh/base/cgroup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

bool lists(const std::string& words, const std::string& word) {
  return ("," + words + ",").find("," + word + ",") != std::string::npos;
}

/// Returns the first numbers of a file, up to a word that is no number ("max").
std::vector<int64_t> numbers_in(const fs::path& path) {
  std::ifstream file(path);
  std::vector<int64_t> numbers;
  for (int64_t number = 0; file >> number;) numbers.push_back(number);
  return numbers;
}

/// Returns the number after `key` in memory.stat; 0 without one.
int64_t stat_in(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  for (int64_t number = 0; file >> name >> number;) {
    if (name == key) return number;
  }
  return 0;
}

/// Counts the ".." of a path.
int64_t num_ups(const fs::path& path) {
  return std::count(path.begin(), path.end(), "..");
}

/// Returns the path below `top` of this process's group, which lies `levels` folders deep and then at `group`: the
/// control group name space hides the names of those folders. Empty when it is not found.
fs::path own_group_below(const fs::path& top, const fs::path& group, int64_t levels) {
  std::vector<fs::path> found = {""};
  for (; levels > 0; --levels) {
    std::vector<fs::path> deeper;
    for (const fs::path& folder : found) {
      std::error_code error;
      for (fs::directory_iterator entry(top / folder, error); !error && entry != fs::directory_iterator();
           entry.increment(error)) {
        if (entry->is_directory(error)) deeper.push_back(folder / entry->path().filename());
      }
    }
    found = std::move(deeper);
  }
  fs::path inside;
  for (const fs::path& part : group.relative_path()) {
    if (part != "..") inside /= part;
  }
  for (const fs::path& folder : found) {
    const fs::path own = inside.empty() ? folder : folder / inside;
    const std::vector<int64_t> processes = numbers_in(top / own / "cgroup.procs");
    if (std::find(processes.begin(), processes.end(), getpid()) != processes.end()) return own;
  }
  return {};
}

uint64_t number_of(const fs::path& folder) {
  struct stat found {};
  return stat(folder.c_str(), &found) == 0 ? found.st_ino : 0;
}

}  // namespace

std::vector<fs::path> Cgroups::folders(Version version, const std::string& controller) const {
  // 1. The group's path: "4:memory:/batch/job", or "0::/batch/job" of version 2.
  std::string group;
  std::ifstream groups(root_ / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::istringstream fields(line);
    std::string number, controllers, path;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    const bool is_two = number == "0" && controllers.empty();
    if (version == Version::Two ? is_two : lists(controllers, controller)) group = path;
  }
  if (group.empty()) return {};

  // 2. Where that hierarchy, or the part of it that a container sees, is mounted: "32 31 0:29 /batch /sys/fs/cgroup/cpu
  //    rw shared:9 - cgroup cgroup rw,cpu".
  std::ifstream mounts(root_ / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line), back(line.substr(dash + 3));
    std::string skipped, base, point, type, options;
    front >> skipped >> skipped >> skipped >> base >> point;
    back >> type >> skipped >> options;
    if (version == Version::Two ? type != "cgroup2" : type != "cgroup" || !lists(options, controller)) continue;

    // 3. From the group up to the mount.
    //    Both paths begin at the root of the control group name space, above which they go by "..".
    const fs::path top = root_ / fs::path(point).relative_path();
    fs::path below = fs::path(group).lexically_relative(base);
    if (below.empty()) below = own_group_below(top, group, num_ups(base) - num_ups(group));
    const bool is_below = !below.empty() && num_ups(below) == 0;
    std::vector<fs::path> folders;
    if (is_below && below != ".") {
      fs::path folder = top;
      for (const fs::path& part : below) folders.push_back(folder /= part);
      std::reverse(folders.begin(), folders.end());
    }
    folders.push_back(top);
    return folders;
  }
  return {};
}

std::optional<Cgroups::Quota> Cgroups::processors() const {
  std::optional<Quota> least;
  const auto limit = [&](const fs::path& folder, int64_t quota, int64_t period) {
    if (quota <= 0 || period <= 0) return;
    const double processors = static_cast<double>(quota) / static_cast<double>(period);
    if (!least || processors < least->processors) least = Quota{processors, number_of(folder)};
  };
  for (const fs::path& folder : folders(Version::Two, "cpu")) {
    const std::vector<int64_t> numbers = numbers_in(folder / "cpu.max");
    if (numbers.size() == 2) limit(folder, numbers[0], numbers[1]);
  }
  for (const fs::path& folder : folders(Version::One, "cpu")) {
    const std::vector<int64_t> quota = numbers_in(folder / "cpu.cfs_quota_us");
    const std::vector<int64_t> period = numbers_in(folder / "cpu.cfs_period_us");
    if (!quota.empty() && !period.empty()) limit(folder, quota[0], period[0]);
  }
  return least;
}

std::optional<int64_t> Cgroups::memory() const {
  std::optional<int64_t> least;
  const auto limit = [&](const fs::path& folder, const char* most_file, const char* used_file, const char* cache) {
    const std::vector<int64_t> most = numbers_in(folder / most_file), used = numbers_in(folder / used_file);
    if (most.empty() || used.empty()) return;
    const int64_t in_use = std::max<int64_t>(used[0] - stat_in(folder / "memory.stat", cache), 0);
    const int64_t left = std::max<int64_t>(most[0] - in_use, 0);
    least = std::min(least.value_or(left), left);
  };
  for (const fs::path& folder : folders(Version::Two, "memory")) {
    limit(folder, "memory.max", "memory.current", "inactive_file");
  }
  for (const fs::path& folder : folders(Version::One, "memory")) {
    limit(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
  }
  return least;
}

}  // namespace meshtrain

#include "runtime/program/report/checkpoint_list.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>
#include <string_view>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

double seconds_since_1970(fs::file_time_type time) {
  const auto system = std::chrono::file_clock::to_sys(time);
  return std::chrono::duration<double>(system.time_since_epoch()).count();
}

/// Reads "step-00000012" or "abandoned-step-00000012-2".
bool read_name(std::string_view name, ListedCheckpoint& checkpoint) {
  constexpr std::string_view kAbandonedPrefix = "abandoned-", kStepPrefix = "step-";
  checkpoint.abandoned = name.starts_with(kAbandonedPrefix);
  if (checkpoint.abandoned) name.remove_prefix(kAbandonedPrefix.size());
  if (!name.starts_with(kStepPrefix)) return false;
  name.remove_prefix(kStepPrefix.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), checkpoint.step);
  const bool is_full = end == name.data() + name.size() || (checkpoint.abandoned && *end == '-');
  return error == std::errc() && is_full && checkpoint.step >= 0;
}

}  // namespace

std::vector<ListedCheckpoint> list_checkpoints(const fs::path& folder) {
  std::vector<ListedCheckpoint> listed;
  std::error_code error, gone;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    ListedCheckpoint checkpoint;
    if (!read_name(at->path().filename().string(), checkpoint)) continue;
    const auto written = fs::last_write_time(at->path() / "manifest.json", gone);
    if (gone) continue;
    checkpoint.time = seconds_since_1970(written);
    for (fs::directory_iterator file(at->path(), gone), last; !gone && file != last; file.increment(gone)) {
      const uintmax_t size = file->file_size(gone);
      if (gone) break;
      checkpoint.bytes += static_cast<int64_t>(size);
      checkpoint.num_files += file->path().extension() == ".safetensors" ? 1 : 0;
    }
    listed.push_back(checkpoint);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw InputError("cannot read " + folder.string() + ": " + error.message());
  }
  std::sort(listed.begin(), listed.end(), [](const ListedCheckpoint& a, const ListedCheckpoint& b) {
    return a.step != b.step ? a.step < b.step : a.time < b.time;
  });
  return listed;
}

}  // namespace meshtrain

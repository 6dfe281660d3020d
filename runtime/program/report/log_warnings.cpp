#include "runtime/program/report/log_warnings.h"

#include <algorithm>

namespace meshtrain {
namespace {

constexpr size_t kTimeLength = 23;  // of "2026-03-01 12:00:05.250", which a zone may follow
constexpr size_t kLongestWarning = 500;

}  // namespace

void LogWarnings::add(std::string_view line) {
  constexpr std::string_view kPrefix = "warning: ";
  const size_t level = line.find(": ", kTimeLength);
  if (level == std::string_view::npos || line[0] < '0' || line[0] > '9') return;
  const std::string_view before = line.substr(0, level);
  std::string_view text = line.substr(level + 2);
  const bool has_prefix = text.starts_with(kPrefix);  // logs of earlier versions have it, under level info as well
  if (!before.ends_with(" warning") && !before.ends_with(" error") && !has_prefix) return;
  if (has_prefix) text.remove_prefix(kPrefix.size());
  const std::string kept(text.substr(0, kLongestWarning));
  if (lines_.size() < kMostKept && std::find(lines_.begin(), lines_.end(), kept) == lines_.end()) {
    lines_.push_back(kept);
  }
}

}  // namespace meshtrain

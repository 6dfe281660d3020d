#include "runtime/training/model/tensor_names.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

/// Tensors whose names differ in the number of their layer.
struct NameGroup {
  std::string before, after;     // the parts around the number
  std::vector<int64_t> numbers;  // none: a name without a number
};

/// Returns the name as a group of one. Its number is the first part between dots that is one.
NameGroup group_of(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos) {
      return {name.substr(0, begin), name.substr(end), {std::stoll(part)}};
    }
    begin = end + 1;
  }
  return {name, "", {}};
}

/// Returns "model.layers.[0-3].self_attn.q_proj.bias".
std::string describe_group(const NameGroup& group) {
  if (group.numbers.empty()) return group.before;
  const auto [least, most] = std::ranges::minmax(group.numbers);
  std::string number = std::to_string(least);
  if (least != most) number = "[" + number + "-" + std::to_string(most) + "]";
  return group.before + number + group.after;
}

}  // namespace

std::string describe_names(const std::vector<std::string>& names) {
  constexpr size_t kMostGroups = 8, kMostBytes = 100;
  std::map<std::pair<std::string, std::string>, NameGroup> groups;
  for (const std::string& name : names) {
    const NameGroup found = group_of(name);
    NameGroup& group =
        groups.try_emplace({found.before, found.after}, NameGroup{found.before, found.after, {}}).first->second;
    group.numbers.insert(group.numbers.end(), found.numbers.begin(), found.numbers.end());
  }
  std::string all;
  size_t shown = 0;
  for (const auto& [key, group] : groups) {
    if (shown == kMostGroups) break;
    std::string text = describe_group(group);
    if (text.size() > kMostBytes) text = text.substr(0, kMostBytes) + "...";
    all += (shown++ == 0 ? "" : ", ") + text;
  }
  if (groups.size() > shown) all += ", and " + counted(groups.size() - shown, "more name");
  return all;
}

}  // namespace meshtrain

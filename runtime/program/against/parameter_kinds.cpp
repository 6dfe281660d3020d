#include "runtime/program/against/parameter_kinds.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "mesh/base/size_text.h"
#include "runtime/training/model/folder_tensors.h"

namespace meshtrain {

std::string describe_kinds(const std::vector<std::string>& some, const std::vector<std::string>& all, bool tied) {
  const std::vector<std::pair<std::string, std::function<bool(const std::string&)>>> kinds = {
      {tied ? "the embedding, which is the head too" : "the embedding",
       [](const std::string& name) { return name == kEmbedding; }},
      {"the head", [](const std::string& name) { return name == kHead; }},
      {"norms", [](const std::string& name) { return name.find("norm") != std::string::npos; }},
      {"biases", [](const std::string& name) { return name.ends_with(".bias"); }},
      {"row-parallel layers (o_proj, down_proj)",
       [](const std::string& name) { return name.ends_with(".o_proj.weight") || name.ends_with(".down_proj.weight"); }},
      {"column-parallel layers (q, k, v, gate, up)", [](const std::string& name) {
         return name.ends_with("_proj.weight") && !name.ends_with(".o_proj.weight") &&
                !name.ends_with(".down_proj.weight");
       }}};
  std::string text;
  std::set<std::string> named;
  for (const auto& [kind, has] : kinds) {
    const int64_t wrong = std::ranges::count_if(some, has), total = std::ranges::count_if(all, has);
    if (wrong == 0) continue;
    std::ranges::copy_if(some, std::inserter(named, named.end()), has);
    text += (text.empty() ? "" : ", ") +
            (wrong == total ? kind : std::to_string(wrong) + " of " + std::to_string(total) + " " + kind);
  }
  const size_t others = some.size() - named.size();
  if (others > 0) text += (text.empty() ? "" : ", ") + counted(others, "other parameter");
  return text;
}

}  // namespace meshtrain

#include "runtime/plan/plan_text.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "mesh/size_text.h"

namespace meshtrain {
namespace {

using nlohmann::ordered_json;

constexpr size_t kWidth = 100;

/// A row of cells, of which the first is aligned to the left.
using Row = std::vector<std::string>;

std::string table(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? "  " : "   ") + (i == 0 ? row[i] + blanks : blanks + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string sent_text(int64_t bytes) {
  return bytes == 0 ? "-" : size_text(bytes);
}

Row row_of(const PlannedMesh& mesh) {
  const StepMemory& memory = mesh.forecast.step.memory();
  const int64_t state = memory.parameters + memory.gathered + memory.gradients + memory.optimizer;
  const int64_t computing = memory.activations + memory.temporaries;
  return {mesh.layout.describe(),
          size_text(memory.total()),
          size_text(state),
          size_text(computing),
          size_text(memory.inputs + memory.exchange),
          sent_text(mesh.sent_on_host),
          sent_text(mesh.sent_among_hosts)};
}

/// Returns `words` in lines of at most kWidth columns, each behind `indent`.
std::string wrapped(const std::vector<std::string>& words, const std::string& indent) {
  std::string text, line = indent;
  for (const std::string& word : words) {
    if (line.size() > indent.size() && line.size() + 1 + word.size() > kWidth) {
      text += line + "\n";
      line = indent;
    }
    line += (line.size() > indent.size() ? " " : "") + word;
  }
  return text + line + "\n";
}

std::vector<std::string> words_of(const std::string& sentence) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < sentence.size();) {
    const size_t end = std::min(sentence.find(' ', begin), sentence.size());
    words.push_back(sentence.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// Returns the first of many, and how many more there are.
std::vector<std::string> abbreviated(std::vector<std::string> meshes) {
  constexpr size_t kShown = 8;
  if (meshes.size() <= kShown + 1) return meshes;
  const std::string more = std::to_string(meshes.size() - kShown);
  meshes.resize(kShown);
  meshes.insert(meshes.end(), {"and", more, "more"});
  return meshes;
}

std::string count_text(size_t count, const char* one, const char* several) {
  return std::to_string(count) + " " + (count == 1 ? one : several);
}

}  // namespace

std::string to_text(const MeshSearch& search, const PlanRequest& request, size_t top) {
  const auto fitting = static_cast<size_t>(std::ranges::count(search.meshes, true, &PlannedMesh::fits));
  std::string text = count_text(search.meshes.size(), "mesh", "meshes") + " of " + std::to_string(request.ranks) +
                     (request.ranks == 1 ? " rank" : " ranks");
  if (request.memory) text += ", " + std::to_string(fitting) + " in " + size_text(*request.memory) + " a rank";
  text += "; bytes of the fullest rank, and those that it sends in a step\n\n";
  if (!search.meshes.empty()) {
    std::vector<Row> rows = {{"mesh", "memory", "state", "computing", "other", "sent on its host", "among hosts"}};
    size_t shown = 0;
    for (const PlannedMesh& mesh : search.meshes) {
      if (shown++ == top) break;
      rows.push_back(row_of(mesh));
      if (!mesh.fits) rows.back().front() += " *";
    }
    text += table(rows);
    if (fitting < std::min(search.meshes.size(), top)) text += "  * does not fit\n";
    if (search.meshes.size() > top) {
      text += "  and " + std::to_string(search.meshes.size() - top) + " more: --top shows them\n";
    }
  }
  if (!search.refused.empty()) text += "\nnot possible:\n";
  for (const RefusedMeshes& refused : search.refused) {
    text += wrapped(words_of(refused.reason), "  ");
    text += wrapped(abbreviated(refused.meshes), "    ");
  }
  return text;
}

std::string to_json(const MeshSearch& search, const PlanRequest& request) {
  ordered_json meshes = ordered_json::array(), refused = ordered_json::array();
  for (const PlannedMesh& mesh : search.meshes) {
    const StepMemory& memory = mesh.forecast.step.memory();
    ordered_json traffic = ordered_json::array();
    for (const auto& [key, sent] : mesh.forecast.step.traffic) {
      const auto hosts = mesh.forecast.step.num_hosts.find(key.group);
      traffic.push_back({{"group", key.group},
                         {"purpose", key.purpose},
                         {"collective", name(key.kind)},
                         {"calls", sent.calls},
                         {"sent_bytes", sent.sent_bytes},
                         {"hosts", hosts != mesh.forecast.step.num_hosts.end() ? hosts->second : 1}});
    }
    meshes.push_back({{"mesh", mesh.layout.describe()},
                      {"fits", mesh.fits},
                      {"rank", mesh.forecast.rank},
                      {"micro_batches", mesh.forecast.micro_batches},
                      {"memory_bytes",
                       {{"parameters", memory.parameters},
                        {"gathered", memory.gathered},
                        {"gradients", memory.gradients},
                        {"optimizer", memory.optimizer},
                        {"activations", memory.activations},
                        {"temporaries", memory.temporaries},
                        {"inputs", memory.inputs},
                        {"exchange", memory.exchange}}},
                      {"memory_bytes_total", memory.total()},
                      {"sent_bytes_on_host", mesh.sent_on_host},
                      {"sent_bytes_among_hosts", mesh.sent_among_hosts},
                      {"traffic", std::move(traffic)}});
    if (const std::optional<StepTime>& time = mesh.forecast.step.time) {
      meshes.back()["seconds"] = time->total();
      meshes.back()["seconds_by_part"] = {{"products", time->products},
                                          {"attention", time->attention},
                                          {"elementwise", time->elementwise},
                                          {"optimizer", time->optimizer},
                                          {"collectives", time->collectives},
                                          {"exposed", time->exposed}};
    }
  }
  for (const RefusedMeshes& each : search.refused) {
    refused.push_back({{"key", each.key}, {"reason", each.reason}, {"meshes", each.meshes}});
  }
  const ordered_json all = {{"ranks", request.ranks},
                            {"ranks_per_host", request.hosts.ranks_per_host},
                            {"device", request.hosts.gpus ? "cuda" : "cpu"},
                            {"meshes", std::move(meshes)},
                            {"refused", std::move(refused)}};
  return all.dump(1);
}

}  // namespace meshtrain

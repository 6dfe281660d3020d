#include "runtime/plan/search.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "mesh/error.h"

namespace meshtrain {
namespace {

/// Returns the meshes of `ranks` ranks in the recipe's order of axes.
std::vector<MeshLayout> layouts_of(const Recipe& recipe, int64_t ranks) {
  std::vector<MeshLayout> layouts;
  for (int64_t tp = 1; tp <= ranks; ++tp) {
    if (ranks % tp != 0) continue;
    for (int64_t cp = 1; cp <= ranks / tp; ++cp) {
      if (ranks / tp % cp != 0) continue;
      const std::map<std::string, int64_t> sizes = {
          {kDataAxis, ranks / tp / cp}, {kContextAxis, cp}, {kTensorAxis, tp}};
      layouts.push_back(MeshLayout::fit(sizes, recipe.parallel.order, ranks));
    }
  }
  return layouts;
}

PlannedMesh planned(const MeshLayout& layout, RunForecast forecast, const PlanRequest& request) {
  PlannedMesh mesh{layout, std::move(forecast)};
  mesh.fits = !request.memory || mesh.forecast.step.memory().total() <= *request.memory;
  const StepForecast& step = mesh.forecast.step;
  for (const auto& [key, traffic] : step.traffic) {
    const auto hosts = step.num_hosts.find(key.group);
    const bool on_one_host = hosts == step.num_hosts.end() || hosts->second == 1;
    (on_one_host ? mesh.sent_on_host : mesh.sent_among_hosts) += traffic.sent_bytes;
  }
  return mesh;
}

/// Returns the key that a refusal begins with.
std::string key_of(const std::string& refusal) {
  return refusal.substr(0, refusal.find(": "));
}

}  // namespace

MeshSearch search_meshes(const Recipe& recipe, const PlanRequest& request) {
  Recipe unplaced = recipe;
  unplaced.locations.clear();  // refusals then begin with the key
  MeshSearch search;
  std::map<std::string, RefusedMeshes> refused;
  for (const MeshLayout& layout : layouts_of(recipe, request.ranks)) {
    try {
      const RunPlan plan = resolve(unplaced, layout);
      search.meshes.push_back(planned(layout, forecast(unplaced, plan, request.hosts), request));
    } catch (const InputError& error) {
      const std::string reason = error.what(), key = key_of(reason);
      refused.try_emplace(key, RefusedMeshes{key, reason, {}}).first->second.meshes.push_back(layout.describe());
    }
  }
  const auto rank_of = [](const PlannedMesh& mesh) {
    return std::tuple(!mesh.fits, mesh.sent_among_hosts, mesh.sent_on_host, mesh.forecast.step.memory().total());
  };
  std::ranges::stable_sort(search.meshes, {}, rank_of);
  for (auto& [key, meshes] : refused) search.refused.push_back(std::move(meshes));
  std::ranges::stable_sort(search.refused, std::greater(), [](const auto& each) { return each.meshes.size(); });
  return search;
}

std::optional<int64_t> least_ranks(const Recipe& recipe, PlanRequest request) {
  constexpr int64_t kMost = 16384;
  for (; request.ranks <= kMost; request.ranks *= 2) {
    const MeshSearch search = search_meshes(recipe, request);
    if (!search.meshes.empty() && search.meshes.front().fits) return request.ranks;
  }
  return std::nullopt;
}

}  // namespace meshtrain

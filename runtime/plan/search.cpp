#include "runtime/plan/search.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "mesh/error.h"

namespace meshtrain {
namespace {

PlannedMesh planned(const MeshLayout& layout, RunForecast forecast, const PlanRequest& request) {
  PlannedMesh mesh{layout, std::move(forecast)};
  mesh.fits = !request.memory || mesh.forecast.step.memory().total() <= *request.memory;
  const StepForecast& step = mesh.forecast.step;
  for (const auto& [key, traffic] : step.traffic) {
    (mesh.num_hosts(key.group) == 1 ? mesh.sent_on_host : mesh.sent_among_hosts) += traffic.sent_bytes;
  }
  return mesh;
}

/// Returns the key that a refusal begins with.
std::string key_of(const std::string& refusal) {
  return refusal.substr(0, refusal.find(": "));
}

struct Refusal {
  std::string reason;
};

/// Returns the number of threads to plan on. Steps of hosts are simulated on one: what their operators allocate for a
/// moment is measured, by counters of the process.
size_t num_threads(const PlanRequest& request) {
  return request.hosts.gpus ? std::max(1u, std::thread::hardware_concurrency()) : 1;
}

/// Calls `work` with each number below `count`, on `num_threads` threads. The first exception ends the search.
template <class Work>
void for_each_number(size_t count, size_t num_threads, const Work& work) {
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      next = count;
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < std::min(num_threads, count); ++i) threads.emplace_back(run);
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

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

MeshSearch search_meshes(const Recipe& recipe, const PlanRequest& request) {
  Recipe unplaced = recipe;
  unplaced.locations.clear();  // refusals then begin with the key
  const std::vector<MeshLayout> layouts = layouts_of(recipe, request.ranks);
  std::vector<std::variant<PlannedMesh, Refusal>> results(layouts.size(), Refusal());
  for_each_number(layouts.size(), num_threads(request), [&](size_t i) {
    try {
      const RunPlan plan = resolve(unplaced, layouts[i]);
      results[i] = planned(layouts[i], forecast(unplaced, plan, request.hosts, request.machine.get()), request);
    } catch (const InputError& error) {
      results[i] = Refusal{error.what()};
    }
  });
  MeshSearch search;
  std::map<std::string, RefusedMeshes> refused;
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (auto* const mesh = std::get_if<PlannedMesh>(&results[i])) {
      search.meshes.push_back(std::move(*mesh));
      continue;
    }
    const std::string reason = std::get<Refusal>(results[i]).reason, key = key_of(reason);
    refused.try_emplace(key, RefusedMeshes{key, reason, {}}).first->second.meshes.push_back(layouts[i].describe());
  }
  const auto rank_of = [](const PlannedMesh& mesh) {
    return std::tuple(!mesh.fits, mesh.seconds(), mesh.sent_among_hosts, mesh.sent_on_host,
                      mesh.forecast.step.memory().total());
  };
  std::ranges::stable_sort(search.meshes, {}, rank_of);
  for (auto& [key, meshes] : refused) search.refused.push_back(std::move(meshes));
  std::ranges::stable_sort(search.refused, std::greater(), [](const auto& each) { return each.meshes.size(); });
  return search;
}

int PlannedMesh::num_hosts(const std::string& group) const {
  const auto found = forecast.step.num_hosts.find(group);
  return found != forecast.step.num_hosts.end() ? found->second : 1;
}

std::pair<int64_t, int64_t> largest_micro_batch(const Recipe& recipe, const MeshLayout& layout,
                                                const PlanRequest& request) {
  Recipe larger = recipe;
  std::pair<int64_t, int64_t> largest = {recipe.train.micro_batch, 0};
  const int64_t of_rank = recipe.train.global_batch / layout.size(kDataAxis);
  for (int64_t count = recipe.train.micro_batch; count <= of_rank; ++count) {
    if (of_rank % count != 0) continue;
    larger.train.micro_batch = count;
    try {
      const RunForecast run = forecast(larger, resolve(larger, layout), request.hosts);
      const int64_t bytes = run.step.memory().total();
      if (request.memory && bytes > *request.memory) break;
      largest = {count, bytes};
    } catch (const InputError&) {
      break;
    }
  }
  return largest;
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

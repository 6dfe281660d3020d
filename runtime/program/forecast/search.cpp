#include "runtime/program/forecast/search.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <ranges>
#include <thread>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "runtime/program/forecast/improve.h"
#include "runtime/program/forecast/settings.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/recipe/mesh_size.h"

namespace meshtrain {
namespace {

/// The forecast of a mesh, or the reason why it is refused.
struct MeshResult {
  std::optional<MeshForecast> mesh;
  std::string key, refusal;  ///< set when there is no mesh
};

/// Returns the number of threads for the forecasts. Steps on hosts are simulated on one thread, because counters of the
/// process measure the temporaries of their operators.
size_t num_threads(const ForecastRequest& request) {
  return request.hosts.gpus ? std::max(1u, std::thread::hardware_concurrency()) : 1;
}

/// Calls `work` with each number below `count`, on `num_threads` threads. The first exception ends the search. `what`:
/// the work on each mesh, for people.
template <class Work>
void for_each_mesh(const std::string& what, size_t count, size_t num_threads, const Work& work) {
  Progress progress(what, static_cast<int64_t>(count), "meshes");
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) {
        work(i);
        progress.advance();
      }
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

/// Returns how many times as long as its computing a step of a mesh takes at least with other settings: with two stages
/// on each rank of a pipeline, and micro-batches of one sample, (p - 1) / (2 m) of it is a bubble.
double least_stretch(const MeshForecast& mesh) {
  const auto others = static_cast<double>(mesh.layout.size(kPipelineAxis) - 1);
  const auto samples = static_cast<double>(mesh.recipe.train.global_batch / mesh.layout.size(kDataAxis));
  return 1 + others / (2 * samples);
}

/// Leaves out of `meshes`, numbers of results, those that differ from others in ep alone, but for two: the first by
/// MeshForecast::order() and the one that needs least memory. Of refused ones it keeps the smallest ep and the largest.
void keep_two_of_each_ep(std::vector<size_t>& meshes, const std::vector<MeshResult>& results,
                         const std::vector<MeshLayout>& layouts) {
  struct Kept {
    size_t first, least;
  };
  std::map<std::map<std::string, int64_t>, Kept> kept;
  for (const size_t i : meshes) {
    std::map<std::string, int64_t> sizes = layouts[i].sizes();
    sizes.erase(kExpertAxis);
    const auto [found, is_new] = kept.try_emplace(std::move(sizes), Kept{i, i});
    if (is_new) continue;
    auto& [first, least] = found->second;
    const std::optional<MeshForecast>&own = results[i].mesh, &best = results[first].mesh, &small = results[least].mesh;
    if (own && (!best || own->order() < best->order())) first = i;
    if (own ? !small || own->memory() < small->memory() : !small) least = i;
  }
  std::erase_if(meshes, [&](size_t i) {
    return std::ranges::none_of(kept,
                                [&](const auto& each) { return each.second.first == i || each.second.least == i; });
  });
}

/// Returns the meshes whose settings are worth trying: every one in which computing alone, with other settings, may
/// take less than the best mesh takes; for orders of axes alone, the best few.
std::vector<size_t> promising_meshes(const std::vector<MeshResult>& results, const std::vector<MeshLayout>& layouts,
                                     const ForecastRequest& request) {
  constexpr size_t kFew = 5;
  constexpr double kLeastComputing = 0.5;  // of a step, with other settings: without recomputation, in larger products
  std::vector<size_t> sorted;
  const MeshForecast* best = nullptr;
  for (size_t i = 0; i < results.size(); ++i) {
    const std::optional<MeshForecast>& mesh = results[i].mesh;
    if (mesh && (best == nullptr || mesh->order() < best->order())) best = &*mesh;
    if (mesh || request.scope == SearchScope::All) sorted.push_back(i);
  }
  if (request.scope == SearchScope::Mesh) {
    std::ranges::stable_sort(sorted, {}, [&](size_t i) { return results[i].mesh->order(); });
    sorted.resize(std::min(sorted.size(), kFew));
    return sorted;
  }
  std::erase_if(sorted, [&](size_t i) {
    const std::optional<MeshForecast>& mesh = results[i].mesh;
    if (!mesh || !mesh->forecast.step.time || !best->fits) return false;
    const TimeForecast& time = *mesh->forecast.step.time;
    return kLeastComputing * (time.products + time.attention) * least_stretch(*mesh) > best->seconds();
  });
  keep_two_of_each_ep(sorted, results, layouts);
  return sorted;
}

/// Returns the bytes that a rank holds with another value of a key; none when that does not fit or is refused.
std::optional<int64_t> memory_with(const Recipe& recipe, const std::string& key, int64_t value,
                                   const MeshLayout& layout, const ForecastRequest& request) {
  try {
    const Recipe other = with_overrides(recipe, {key + "=" + std::to_string(value)});
    const int64_t bytes = forecast(resolve(other, layout), request.hosts).step.memory().total();
    return request.has_room_for(bytes) ? std::optional(bytes) : std::nullopt;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

/// Returns the sizes of ep that a search tries: 1, and each that divides the experts of a mixture.
std::vector<int64_t> expert_ranks_of(const Recipe& recipe) {
  std::vector<int64_t> all = {1};
  const int64_t experts = recipe.model.shape.experts.num_experts;
  for (int64_t ep = 2; ep <= experts; ++ep) {
    if (experts % ep == 0) all.push_back(ep);
  }
  return all;
}

}  // namespace

bool asks_for_pipelines(const Recipe& recipe) {
  const auto& [schedule, stages_per_rank, layers] = recipe.parallel.pipeline;
  return asked_size(recipe, kPipelineAxis) != 1 || schedule != "auto" || stages_per_rank > 1 || !layers.empty();
}

std::vector<MeshLayout> layouts_of(const Recipe& recipe, int64_t ranks) {
  const int64_t most_stages = asks_for_pipelines(recipe) ? recipe.model.shape.num_hidden_layers : 1;
  const std::vector<int64_t> expert_ranks = expert_ranks_of(recipe);
  std::vector<MeshLayout> layouts;
  for (int64_t pp = 1; pp <= std::min(most_stages, ranks); ++pp) {
    for (int64_t tp = 1; tp <= ranks / pp; ++tp) {
      if (ranks % pp != 0 || ranks / pp % tp != 0) continue;
      for (int64_t cp = 1; cp <= ranks / pp / tp; ++cp) {
        if (ranks / pp / tp % cp != 0) continue;
        std::map<std::string, int64_t> sizes = {
            {kPipelineAxis, pp}, {kDataAxis, ranks / pp / tp / cp}, {kContextAxis, cp}, {kTensorAxis, tp}};
        for (const int64_t ep : expert_ranks) {
          if (ranks / pp % ep != 0) continue;
          sizes[kExpertAxis] = ep;
          layouts.push_back(MeshLayout::fit(sizes, recipe.parallel.order, ranks));
        }
      }
    }
  }
  return layouts;
}

MeshSearch search_meshes(const Recipe& recipe, const ForecastRequest& request) {
  Recipe without_locations = recipe;
  without_locations.locations.clear();  // refusals then begin with the key
  const std::vector<MeshLayout> layouts = layouts_of(recipe, request.ranks);
  std::vector<MeshResult> results(layouts.size());
  for_each_mesh("plan on " + counted(request.ranks, "rank"), layouts.size(), num_threads(request), [&](size_t i) {
    try {
      results[i].mesh = forecast_mesh(without_locations, layouts[i], {}, request);
    } catch (const InputError& error) {
      results[i].key = error.key();
      results[i].refusal = error.what();
    }
  });
  const std::vector<size_t> promising = promising_meshes(results, layouts, request);
  for_each_mesh("other settings", promising.size(), num_threads(request), [&](size_t nth) {
    const size_t i = promising[nth];
    std::optional<MeshForecast>& mesh = results[i].mesh;
    const auto improve_by = [&](const std::vector<Choice>& choices) {
      mesh = improve(without_locations, layouts[i], std::move(mesh), choices, request);
    };
    if (request.scope == SearchScope::Mesh) {
      improve_by({order_choice(without_locations, layouts[i], request.hosts)});
      return;
    }
    std::vector<Choice> choices = choices_of(without_locations, layouts[i], request.hosts);
    improve_by(choices);
    // Offload alone makes a step longer: it is for meshes on which nothing else fits.
    if (!request.hosts.gpus || (mesh && mesh->fits)) return;
    choices.push_back(offload_choice());
    improve_by(choices);
  });
  MeshSearch search;
  std::map<std::string, RefusedMeshes> refused;
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (std::optional<MeshForecast>& mesh = results[i].mesh) {
      search.meshes.push_back(std::move(*mesh));
      continue;
    }
    const auto& [mesh, key, reason] = results[i];
    RefusedMeshes& alike =
        refused.try_emplace(key.empty() ? reason : key, RefusedMeshes{key, reason, {}}).first->second;
    alike.meshes.push_back(layouts[i].describe());
  }
  std::ranges::stable_sort(search.meshes, {}, &MeshForecast::order);
  for (auto& [key, meshes] : refused) search.refused.push_back(std::move(meshes));
  std::ranges::stable_sort(search.refused, std::greater(), [](const auto& each) { return each.meshes.size(); });
  return search;
}

LargestFit largest_micro_batch(const MeshForecast& mesh, const ForecastRequest& request) {
  const Recipe& recipe = mesh.recipe;
  const int64_t of_rank = recipe.train.global_batch / mesh.layout.size(kDataAxis);
  LargestFit largest{recipe.train.micro_batch, mesh.memory()};
  for (int64_t count = largest.value + 1; count <= of_rank; ++count) {
    if (of_rank % count != 0) continue;
    const auto memory = memory_with(recipe, "train.micro_batch", count, mesh.layout, request);
    if (!memory) {
      largest.bound = LargestFit::Bound::Memory;
      break;
    }
    largest = {count, *memory};
  }
  return largest;
}

LargestFit largest_sequence(const MeshForecast& mesh, const ForecastRequest& request) {
  constexpr int64_t kMost = 4096;
  const Recipe& recipe = mesh.recipe;
  const int64_t own = recipe.train.sequence_length;
  LargestFit largest{own, mesh.memory()};
  int64_t fits = 1, fails = 2;  // times its own length
  const auto tries = [&](int64_t times) {
    const auto memory = memory_with(recipe, "train.sequence_length", times * own, mesh.layout, request);
    if (memory) largest = {times * own, *memory};
    return memory.has_value();
  };
  while (fails <= kMost && tries(fails)) fits = std::exchange(fails, 2 * fails);
  while (fails - fits > 1 && fails <= kMost) {
    const int64_t between = (fits + fails) / 2;
    (tries(between) ? fits : fails) = between;
  }
  if (fails <= kMost) largest.bound = LargestFit::Bound::Memory;
  return largest;
}

std::optional<int64_t> least_ranks(const Recipe& recipe, ForecastRequest request) {
  constexpr int64_t kMost = 16384;
  request.scope = SearchScope::Mesh;
  request.machine = nullptr;
  for (std::optional<int64_t> of_half; request.ranks <= kMost; request.ranks *= 2) {
    const MeshSearch search = search_meshes(recipe, request);
    if (search.meshes.empty()) continue;
    const int64_t memory = std::ranges::min(search.meshes | std::views::transform(&MeshForecast::memory));
    if (request.has_room_for(memory)) return request.ranks;
    if (of_half && memory >= *of_half) return std::nullopt;
    of_half = memory;
  }
  return std::nullopt;
}

}  // namespace meshtrain

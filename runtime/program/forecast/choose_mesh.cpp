#include "runtime/program/forecast/choose_mesh.h"

#include <iterator>
#include <memory>
#include <sstream>
#include <vector>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/host_map.h"
#include "runtime/program/forecast/forecast_text.h"
#include "runtime/program/recipe/decisions.h"

namespace meshtrain {
namespace {

ChosenMesh fastest_mesh(const Recipe& recipe, ForecastRequest request) {
  request.samples = std::make_shared<const PackedSamples>(recipe);
  const MeshSearch search = search_meshes(recipe, request);
  if (search.meshes.empty() || !search.meshes.front().fits) throw InputError(explain(search, recipe, request));
  const MeshForecast& best = search.meshes.front();
  const std::string worst = describe_worst_routing(resolve(best.recipe, best.layout), request.hosts);
  return {best.layout, "--mesh auto: " + best.layout.describe() + ", the fastest of " +
                           counted(search.meshes.size(), "mesh", "meshes") +
                           " by the plan: " + describe_forecast(best.forecast) + (worst.empty() ? "" : "; " + worst) +
                           basis_text(request)};
}

}  // namespace

ChosenMesh choose_mesh(const Recipe& recipe, int64_t num_ranks, const Machine& machine) {
  return fastest_mesh(recipe, forecast_request(recipe, num_ranks, 0, std::make_shared<const Machine>(machine)));
}

ChosenMesh choose_mesh(const Recipe& recipe, const Group& world, const Machine& machine) {
  const ForecastRequest request = forecast_request(recipe, world.size(), world.size() / HostMap::of(world).num_hosts(),
                                                   std::make_shared<const Machine>(machine));
  std::string mesh, order, reason;
  agree(world, [&] {
    if (world.rank() != 0) return;
    const ChosenMesh best = fastest_mesh(recipe, request);
    mesh = best.layout.describe();
    for (const Axis& axis : best.layout.axes()) order += axis.name + " ";
    reason = best.reason;
  });
  std::istringstream names(broadcast_text(world, order));
  const std::vector<std::string> axes(std::istream_iterator<std::string>(names), {});
  return {MeshLayout::fit(parse_mesh(broadcast_text(world, mesh)), axes, world.size()), reason};
}

std::string describe_forecast(const RunForecast& run) {
  std::string text =
      size_text(run.step.memory().total()) + " a rank, " + size_text(run.step.sent_bytes()) + " sent a step";
  if (run.step.time) text += ", " + seconds_text(run.step.time->total()) + " a step";
  return text;
}

}  // namespace meshtrain

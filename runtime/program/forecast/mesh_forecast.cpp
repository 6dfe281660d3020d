#include "runtime/program/forecast/mesh_forecast.h"

#include <algorithm>
#include <map>
#include <utility>

#include "mesh/base/error.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"

namespace meshtrain {

namespace {

/// The GPUs of a host where nobody says how many: those of a DGX or HGX.
constexpr int64_t kGpusOfHost = 8;

}  // namespace

ForecastRequest forecast_request(const Recipe& recipe, int64_t ranks, int64_t ranks_per_host,
                                 std::shared_ptr<const Machine> machine) {
  if (machine && recipe.device != "auto" && recipe.device != machine->device) {
    throw InputError("device", recipe.device + ", but --machine " + machine->name + " has times for device: " +
                                   machine->device + ": give a machine with the recipe's device, or change device");
  }
  ForecastRequest request;
  request.ranks = ranks;
  request.assumes_hosts = ranks_per_host == 0;
  const bool gpus = machine ? machine->device == "cuda" : recipe.device == "cuda";
  if (request.assumes_hosts) ranks_per_host = gpus ? std::min(ranks, kGpusOfHost) : ranks;
  request.hosts = {ranks_per_host, gpus};
  if (machine && machine->memory > 0) request.memory = machine->memory;
  request.machine = std::move(machine);
  request.dtype = dtype_of(recipe.train.precision);
  return request;
}

int MeshForecast::num_hosts(const std::string& group) const {
  const auto found = forecast.step.num_hosts.find(group);
  return found != forecast.step.num_hosts.end() ? found->second : 1;
}

MeshForecast forecast_mesh(const Recipe& recipe, const MeshLayout& layout, const Settings& settings,
                           const ForecastRequest& request) {
  const Recipe changed = settings.empty() ? recipe : with_overrides(recipe, settings);
  // The order of a recipe on a mesh without pp leaves pp out.
  const MeshLayout ordered = MeshLayout::fit(layout.sizes(), complete_order(changed.parallel.order), layout.size());
  const Decisions decisions = resolve(changed, ordered);
  MeshForecast mesh{ordered, settings, changed, forecast(decisions, request.hosts, request.machine.get()),
                    decisions.pipeline};
  std::optional<TimeForecast>& time = mesh.forecast.step.time;
  if (time && request.samples) request.samples->apply(*time, changed, decisions);
  mesh.fits = request.has_room_for(mesh.memory());
  for (const auto& [key, traffic] : mesh.forecast.step.traffic) {
    (mesh.num_hosts(key.group) == 1 ? mesh.sent_on_host : mesh.sent_among_hosts) += traffic.sent_bytes;
  }
  return mesh;
}

}  // namespace meshtrain

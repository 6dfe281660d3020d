#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/program/forecast/forecast.h"
#include "runtime/program/forecast/packing.h"

namespace meshtrain {

/// The settings that are tried on each mesh: orders of axes on the best meshes, or every setting that does not change
/// what is trained (settings.h).
enum class SearchScope { Mesh, All };

/// Bytes of a GPU that hold no tensors: CUDA's context, NCCL's buffers, what LibTorch's allocator cannot use.
inline constexpr int64_t kGpuRuntimeBytes = int64_t{2} << 30;

/// The request for a forecast.
struct ForecastRequest {
  int64_t ranks = 1;
  ForecastHosts hosts;
  bool assumes_hosts = false;                      ///< true: the number of ranks on a host is assumed
  std::optional<int64_t> memory = {};              ///< bytes that a rank's device has; none: any
  std::shared_ptr<const Machine> machine = {};     ///< predicts the times of steps; null: no times
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of the products
  SearchScope scope = SearchScope::Mesh;
  std::shared_ptr<const PackedSamples> samples = {};  ///< samples whose attention counts; null: one document each

  /// Returns true when a rank's tensors of so many bytes fit, beside the runtime's own memory.
  bool has_room_for(int64_t bytes) const { return !memory || bytes + runtime_bytes() <= *memory; }
  int64_t runtime_bytes() const { return hosts.gpus ? kGpuRuntimeBytes : 0; }
  int64_t num_hosts() const { return (ranks + hosts.ranks_per_host - 1) / hosts.ranks_per_host; }
};

/// Returns the request for a forecast of `recipe` on `ranks` ranks with the speed and memory of `machine`. Without a
/// machine neither is known, and `device` of the recipe says whether ranks have GPUs. `ranks_per_host`: 0 when unknown;
/// hosts are then assumed to have 8 GPUs, and ranks on CPUs to share one host. Throws InputError when the recipe names
/// another device than the machine's.
ForecastRequest forecast_request(const Recipe& recipe, int64_t ranks, int64_t ranks_per_host,
                                 std::shared_ptr<const Machine> machine);

/// Settings of a recipe as --set takes them: "parallel.fsdp.mode=full_shard".
using Settings = std::vector<std::string>;

/// A mesh on which a recipe can be trained, and the forecast of a step on it.
struct MeshForecast {
  MeshLayout layout;
  Settings settings;  ///< applied to the recipe
  Recipe recipe;      ///< with these settings
  RunForecast forecast;
  PipelineChoice pipeline = {};  ///< without stages where pp is 1
  bool fits = true;              ///< in ForecastRequest::memory
  int64_t sent_on_host = 0;      ///< bytes that a rank sends in a step over groups that lie on one host
  int64_t sent_among_hosts = 0;  ///< and over all others
  std::optional<RunForecast> worst_routing = {};  ///< forecast_worst_routing(), where it was asked for

  /// Returns the seconds of a step; 0 without a machine.
  double seconds() const { return forecast.step.time ? forecast.step.time->total() : 0; }
  int64_t memory() const { return forecast.step.memory().total(); }
  /// Returns the number of hosts that `group` spans.
  int num_hosts(const std::string& group) const;
  /// Returns the key by which meshes are sorted: first those that fit, then the faster ones, then those that send less
  /// among hosts, then those that send less in all, then those that hold less.
  auto order() const { return std::tuple(!fits, seconds(), sent_among_hosts, sent_on_host, memory()); }
};

/// Forecasts a step of `recipe` with `settings` applied, on the mesh with the sizes of `layout` in the recipe's order
/// of axes. Throws InputError when resolve() or the trainer refuses it.
MeshForecast forecast_mesh(const Recipe& recipe, const MeshLayout& layout, const Settings& settings,
                           const ForecastRequest& request);

}  // namespace meshtrain

#include "mesh/device_mesh.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/instrumented.h"

namespace meshtrain {
namespace {

/// Tensor and expert parallelism wait for their collectives, attention computes beside its own; sums of gradients and
/// gathers of parameters run beside a forward or a backward.
Urgency urgency_of(const std::vector<std::string>& axes) {
  if (axes == std::vector<std::string>{kTensorAxis} || axes == std::vector<std::string>{kExpertAxis}) {
    return Urgency::Awaited;
  }
  return axes == std::vector<std::string>{kContextAxis} ? Urgency::Soon : Urgency::Background;
}

}  // namespace

DeviceMesh::DeviceMesh(MeshLayout layout, const Group& world)
    : layout_(std::move(layout)), rank_(world.rank()), ledger_(std::make_shared<TrafficLedger>()) {
  if (layout_.size() != world.size()) {
    throw InputError("mesh " + layout_.describe() + " needs " + counted(layout_.size(), "rank") + ", but " +
                     counted(world.size(), "was", "were") + " started: change --mesh or mpirun -n");
  }
  coordinate_ = "rank " + std::to_string(rank_) + (layout_.axes().empty() ? "" : " (" + layout_.describe(rank_) + ")");
  std::vector<int64_t> everyone(static_cast<size_t>(layout_.size()));
  std::iota(everyone.begin(), everyone.end(), int64_t{0});
  const bool counts = world.size() > 1;
  world_ =
      Group(counts ? instrument(world.backend(), ledger_) : world.backend(), "world", std::move(everyone), coordinate_);
  alone_ = Group(Group().backend(), "local", {rank_}, coordinate_);
  make_groups();
}

DeviceMesh::DeviceMesh(MeshLayout layout, int64_t rank, std::string coordinate, std::shared_ptr<TrafficLedger> ledger,
                       Group world, Group alone)
    : layout_(std::move(layout)),
      rank_(rank),
      coordinate_(std::move(coordinate)),
      ledger_(std::move(ledger)),
      world_(std::move(world)),
      alone_(std::move(alone)) {
  make_groups();
}

void DeviceMesh::make_groups() {
  for (const Axis& axis : layout_.axes()) group(axis.name);
  group({kDataAxis, kContextAxis});
  group({kContextAxis, kTensorAxis});
}

DeviceMesh DeviceMesh::part(const std::set<std::string>& axes) const {
  std::vector<Axis> kept;
  for (const Axis& axis : layout_.axes()) {
    if (axes.contains(axis.name)) kept.push_back(axis);
  }
  const Group& ranks = group(axes);
  MeshLayout layout(std::move(kept));
  const bool is_stage = layout.size() == layout_.size() / layout_.size(kPipelineAxis);
  if (is_stage) layout = MeshLayout(layout.axes(), layout_.ep());
  return {std::move(layout), ranks.rank(), coordinate_, ledger_, ranks, alone_};
}

DeviceMesh DeviceMesh::experts() const {
  if (layout_.size(kPipelineAxis) > 1)
    throw std::invalid_argument("a mesh of experts is within one pipeline stage: call part() without pp first");
  return {layout_.experts(), rank_, coordinate_, ledger_, world_, alone_};
}

// A group of one for a misspelt axis would sum nothing, without an error.
void DeviceMesh::check_axes(const std::set<std::string>& axes) const {
  for (const std::string& axis : axes) layout_.size(axis);
}

Group DeviceMesh::make_group(const std::set<std::string>& axes) const {
  std::vector<std::string> ordered;
  std::string name;
  for (const Axis& axis : layout_.axes()) {
    if (!axes.contains(axis.name)) continue;
    ordered.push_back(axis.name);
    name += (name.empty() ? "" : "_") + axis.name;
  }
  const std::vector<int64_t> ranks = layout_.group(ordered, rank_);
  return world_.split({ranks.begin(), ranks.end()}, GroupTraits{std::move(name), urgency_of(ordered)});
}

const Group& DeviceMesh::group(const std::string& axis) const {
  return group(std::set<std::string>{axis});
}

const Group& DeviceMesh::group(const std::set<std::string>& axes) const {
  std::set<std::string> wide;
  size_t present = 0;
  for (const Axis& axis : layout_.axes()) {
    if (!axes.contains(axis.name)) continue;
    ++present;
    if (axis.size > 1) wide.insert(axis.name);
  }
  if (present < axes.size()) check_axes(axes);
  if (wide.empty()) return alone_;
  if (present == layout_.axes().size() && present > 1) return world_;
  const auto found = groups_.find(wide);
  return found != groups_.end() ? found->second : groups_.emplace(wide, make_group(wide)).first->second;
}

}  // namespace meshtrain

#include "mesh/device_mesh.h"

#include <algorithm>

#include "mesh/error.h"
#include "mesh/instrumented.h"

namespace meshtrain {

DeviceMesh::DeviceMesh(MeshLayout layout, const Group& world)
    : layout_(std::move(layout)), rank_(world.rank()), ledger_(std::make_shared<TrafficLedger>()) {
  if (layout_.size() != world.size()) {
    throw InputError("mesh " + layout_.describe() + " needs " + std::to_string(layout_.size()) + " ranks, but " +
                     std::to_string(world.size()) + " were started: change --mesh or mpirun -n");
  }
  const std::string place =
      "rank " + std::to_string(rank_) + (layout_.axes().empty() ? "" : " (" + layout_.describe(rank_) + ")");
  const auto named = [&](std::shared_ptr<Backend> backend, const std::string& name, std::vector<int64_t> ranks) {
    if (ranks.size() > 1) backend = instrument(std::move(backend), name, ledger_);
    return Group(std::move(backend), name, std::move(ranks), place);
  };
  std::vector<int64_t> everyone(static_cast<size_t>(layout_.size()));
  for (int64_t rank = 0; rank < layout_.size(); ++rank) everyone[static_cast<size_t>(rank)] = rank;
  world_ = named(world.backend(), "world", std::move(everyone));
  alone_ = Group(Group().backend(), "local", {rank_}, place);

  std::vector<std::string> wide;
  for (const Axis& axis : layout_.axes()) {
    if (axis.size > 1) wide.push_back(axis.name);
  }
  // Every set of axes with more than one rank, in one order on all ranks: splitting is collective.
  for (size_t choice = 1; choice < size_t{1} << wide.size(); ++choice) {
    std::vector<std::string> axes;
    std::string name;
    for (size_t i = 0; i < wide.size(); ++i) {
      if (!(choice >> i & 1)) continue;
      axes.push_back(wide[i]);
      name += (name.empty() ? "" : "_") + wide[i];
    }
    const std::vector<int64_t> ranks = layout_.group(axes, rank_);
    const std::vector<int> members(ranks.begin(), ranks.end());
    groups_.emplace(std::set<std::string>(axes.begin(), axes.end()),
                    named(world.backend()->split(members), name, ranks));
  }
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
  if (wide.empty()) return alone_;
  return present == layout_.axes().size() && present > 1 ? world_ : groups_.at(wide);
}

}  // namespace meshtrain

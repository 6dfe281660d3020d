#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "mesh/group.h"
#include "mesh/layout.h"
#include "mesh/traffic.h"

namespace meshtrain {

/// A layout, this process's rank in it, and Groups of the ranks along its axes. Every rank of `world` must construct
/// the same mesh.
class DeviceMesh {
 public:
  /// Throws InputError when the layout's size is not the world's.
  DeviceMesh(MeshLayout layout, const Group& world);

  const MeshLayout& layout() const { return layout_; }
  int64_t rank() const { return rank_; }
  int64_t size() const { return layout_.size(); }
  int64_t size(const std::string& axis) const { return layout_.size(axis); }
  int64_t coordinate(const std::string& axis) const { return layout_.coordinate(rank_, axis); }

  /// Returns a mesh of the ranks that differ from this one along `axes` only. Its layout has these axes, and rank() and
  /// size() count its own ranks. Messages name ranks and coordinates of this mesh, whose ledger counts the traffic.
  /// Every rank of this mesh must call it, with the same axes and in one order with new groups (group()). Throws
  /// InputError for the names that group() refuses.
  DeviceMesh part(const std::set<std::string>& axes) const;

  /// Returns the mesh of the ranks of a stage as experts see them (MeshLayout::experts()), with the ledger and the
  /// messages of this mesh, which must not have the axis pp. Every rank of this mesh must call it, in one order with
  /// new groups.
  DeviceMesh experts() const;

  /// Returns the ranks that differ from this one along `axis` only. A training axis that the layout lacks is a group of
  /// one. Throws InputError for any other name that the layout lacks.
  const Group& group(const std::string& axis) const;
  /// Returns the ranks that differ along any of `axes`: group({"dp", "cp"}) is named "dp_cp" (in the layout's order).
  /// Axes of one rank make no difference: without context parallelism it is the group of "dp". All axes: world(). The
  /// constructor makes {dp, cp} and {cp, tp}; the first call for any other set makes its group: every rank must make
  /// these calls, in one order.
  const Group& group(const std::set<std::string>& axes) const;
  const Group& group(std::initializer_list<const char*> axes) const {
    return group(std::set<std::string>(axes.begin(), axes.end()));
  }
  const Group& world() const { return world_; }

  /// Returns the traffic of this rank on the groups of this mesh.
  TrafficLedger& traffic() const { return *ledger_; }

 private:
  DeviceMesh(MeshLayout layout, int64_t rank, std::string coordinate, std::shared_ptr<TrafficLedger> ledger,
             Group world, Group alone);

  /// Makes the groups of the axes, of {dp, cp} and of {cp, tp}.
  void make_groups();
  /// Throws InputError for an axis that the layout lacks, unless it is a training axis.
  void check_axes(const std::set<std::string>& axes) const;
  Group make_group(const std::set<std::string>& axes) const;

  MeshLayout layout_;
  int64_t rank_;
  std::string coordinate_;
  std::shared_ptr<TrafficLedger> ledger_;
  Group world_;
  Group alone_;
  mutable std::map<std::set<std::string>, Group> groups_;
};

}  // namespace meshtrain

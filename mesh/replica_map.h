#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mesh/box.h"
#include "mesh/device_mesh.h"

namespace meshtrain {

/// The roles of a mesh's axes. ReplicaMap's comments call them tp, dp and cp, as in a Transformer.
struct ReplicaRoles {
  std::string cut = kTensorAxis;                             ///< its ranks hold parts of parameters
  std::set<std::string> tokens = {kDataAxis, kContextAxis};  ///< their ranks compute different tokens; at most two axes
};

/// The division of a model among the ranks of a mesh: the part that each rank holds, the owner of each element, and the
/// ranks over which each gradient is summed. It is decided here, once, from the mesh and the sharding of data
/// parallelism.
///
/// tp cuts the parameters that name it (Parameter::sharded_over). A rank's parts of the parameters lie in flat buffers.
/// Data parallelism (FSDP), over the axis dp or over dp and cp, cuts these buffers into shards or leaves them uncut.
/// Ranks that hold the same shard of the same part are replicas of each other, and divide the ownership of its elements
/// among them.
///
/// A gradient is a sum over dp x cp, and also over tp when it is partial there (rule 2 of arithmetic). Data parallelism
/// sums over its own ranks, shards() or full_replicas(). remaining() and remaining_partial() are the ranks of the sums
/// that follow.
class ReplicaMap {
 public:
  /// The part of the model that one rank holds.
  struct Part {
    int64_t tp = 0;       ///< part of every parameter that is cut over tp
    int64_t shard = 0;    ///< of every flat buffer
    int64_t replica = 0;  ///< which of the ranks that hold the same: its rank in replicas()

    bool operator==(const Part&) const = default;
  };

  /// One rank, which holds and owns everything.
  ReplicaMap() = default;
  /// Makes the map of rank `rank` of `layout`, without groups, by a few divisions. Data parallelism is over `axes`,
  /// some or all of `roles.tokens`. `num_shards`, a divisor of their number of ranks: each run of that length along
  /// `axes` holds the shards of one model; none: every rank holds the complete model. Throws std::invalid_argument when
  /// `axes` has an axis not in `roles.tokens`, or `layout` has three of `roles.tokens` or ranks without a role.
  ReplicaMap(const MeshLayout& layout, int64_t rank, std::vector<std::string> axes, std::optional<int64_t> num_shards,
             const ReplicaRoles& roles = {});
  /// Makes the map of this rank of `mesh`, with groups. Every rank of `mesh` must call it: collective where there are
  /// several runs of shards.
  ReplicaMap(const DeviceMesh& mesh, const std::vector<std::string>& axes, std::optional<int64_t> num_shards,
             const ReplicaRoles& roles = {});

  /// Returns the map of the ranks that hold this rank's part of the parameters that tp cuts, numbered as in tokens():
  /// without tp.
  ReplicaMap own_part() const;

  int64_t size() const { return size_; }
  int64_t num_tp() const { return tp_.size; }
  Part part_of(int64_t rank) const;
  Part part() const { return part_of(rank_); }
  /// Returns the axes along which flat buffers are cut; empty when every rank holds them in full.
  const std::vector<std::string>& cut_axes() const { return cut_axes_; }

  /// Returns the elements that this rank owns in its shard of a flat buffer. The shard has `numel` elements; the first
  /// `full` belong to parameters that tp does not cut. Every element of the model has exactly one owner (rule 3 of
  /// arithmetic): replicas own equal ranges, and the first tp rank owns the elements that all tp ranks hold.
  Range owned(int64_t numel, int64_t full) const;

  const Group& world() const { return world_; }
  /// Returns the ranks that hold the other parts of the parameters that tp cuts; of all other parameters they hold the
  /// same.
  const Group& parts() const { return parts_; }
  /// Returns the ranks that compute different tokens, dp x cp: a loss and every gradient are sums over them.
  const Group& tokens() const { return tokens_; }
  /// Returns the ranks that hold the shards of this rank's flat buffers, in the order of Part::shard; this rank alone
  /// where they are full.
  const Group& shards() const { return shards_; }
  /// Returns the ranks over which data parallelism sums uncut flat buffers; this rank alone when they are cut.
  const Group& full_replicas() const { return full_replicas_; }
  /// Returns the ranks that hold what this rank holds, in the order of Part::replica.
  const Group& replicas() const { return replicas_; }
  /// Returns the ranks over which gradients remain to be summed after data parallelism: cp unless data parallelism is
  /// over it, and the other runs of shards.
  const Group& remaining() const { return remaining_; }
  /// Returns the same ranks for gradients that are partial over tp: also those of tp.
  const Group& remaining_partial() const { return remaining_partial_; }

 private:
  /// A rank's coordinate on one axis.
  struct Digit {
    int64_t stride = 1, size = 1;
    bool is_cut = false;
    int64_t of(int64_t rank) const { return rank / stride % size; }
  };

  /// `everyone`: the ranks along all axes of the roles.
  void make_runs(const Group& along_axes, const Group& everyone);

  int64_t size_ = 1, rank_ = 0;
  int64_t num_shards_ = 1;
  Digit tp_, outer_, inner_;  // the last two: dp and cp in the order of the layout
  std::vector<std::string> cut_axes_;
  int64_t num_replicas_ = 1;
  Group world_, parts_, tokens_, shards_, full_replicas_, replicas_, remaining_, remaining_partial_;
};

}  // namespace meshtrain

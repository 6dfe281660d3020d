#pragma once

#include <string>
#include <vector>

#include "mesh/group.h"
#include "mesh/layout.h"

namespace meshtrain {

/// The parts of the model that the ranks of a mesh keep: arithmetic alone, at the cost of a few divisions a rank.
class KeeperPlaces {
 public:
  /// The part that one rank keeps.
  struct Place {
    int64_t tp = 0;     ///< part of every parameter that is cut over tp
    int64_t shard = 0;  ///< of every flat buffer
    int64_t copy = 0;   ///< the index among the ranks that keep the same: the rank in Keepers::copies

    bool operator==(const Place&) const = default;
  };

  /// A single rank, which keeps everything.
  KeeperPlaces() = default;
  /// Runs of `num_shards` ranks along `axes`, of dp and cp, keep one complete set of shards each. `layout` has the axes
  /// dp, cp and tp; `num_shards` divides the number of ranks along `axes`.
  KeeperPlaces(const MeshLayout& layout, const std::vector<std::string>& axes, int64_t num_shards);

  int64_t size() const { return size_; }
  int64_t num_tp() const { return tp_.size; }
  Place of(int64_t rank) const;

 private:
  /// A rank's coordinate on one axis.
  struct Digit {
    int64_t stride = 1, size = 1;
    bool is_cut = false;
    int64_t of(int64_t rank) const { return rank / stride % size; }
  };

  int64_t size_ = 1;
  int64_t num_shards_ = 1;
  Digit tp_, outer_, inner_;  // dp and cp in the order of the layout
};

/// The ranks and the parts of the model that they keep, for an optimizer that assembles complete matrices.
struct Keepers {
  using Place = KeeperPlaces::Place;

  Group world;          ///< of the mesh
  Group copies;         ///< ranks that keep the same shard of the same part as this one
  KeeperPlaces places;  ///< of the ranks of `world`

  Place own() const { return places.of(world.rank()); }
};

}  // namespace meshtrain

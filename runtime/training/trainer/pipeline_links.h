#pragma once

#include <map>
#include <utility>

#include "mesh/link.h"

namespace meshtrain {

/// The links between neighbouring ranks of a pipeline, in both directions; the last rank and the first are neighbours.
class PipelineLinks {
 public:
  /// `ranks`: the ranks of the pipeline in the order of their stages. Every rank of it must call it.
  explicit PipelineLinks(const Group& ranks);

  int rank() const { return rank_; }
  /// Returns the link to, and from, a neighbour. Throws std::out_of_range for other ranks.
  const Link& to(int rank) const { return links_.at({rank_, rank}); }
  const Link& from(int rank) const { return links_.at({rank, rank_}); }

 private:
  int rank_;
  std::map<std::pair<int, int>, Link> links_;  // by sender and receiver
};

}  // namespace meshtrain

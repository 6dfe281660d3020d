#pragma once

#include <map>
#include <utility>

#include "mesh/link.h"

namespace meshtrain {

/// The links between neighbouring ranks of a pipeline, in both directions; the last rank and the first are neighbours.
class PipelineLinks {
 public:
  /// `ranks`: the ranks of the pipeline in the order of their stages, each of which must call this constructor.
  explicit PipelineLinks(const Group& ranks);

  const Group& ranks() const { return ranks_; }
  int rank() const { return ranks_.rank(); }
  int size() const { return ranks_.size(); }
  /// Returns the link to, and from, a neighbour. Throws std::out_of_range for other ranks.
  const Link& to(int rank) const { return links_.at({this->rank(), rank}); }
  const Link& from(int rank) const { return links_.at({rank, this->rank()}); }

 private:
  Group ranks_;
  std::map<std::pair<int, int>, Link> links_;  // by sender and receiver
};

}  // namespace meshtrain

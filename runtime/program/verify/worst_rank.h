#pragma once

#include <cstdint>
#include <vector>

#include "mesh/group.h"

namespace meshtrain {

/// A measurement that ranks make, as one rank sees it.
struct Measurement {
  double difference = 0;  ///< decides which rank is worst; a value that is not a number is the worst
  double own = 0;         ///< this rank's share of the difference; decides between equal differences
  double value = 0;
  int64_t rank = 0;  ///< rank in the group

  /// Returns the entry of a rank that cannot measure; every measurement counts as worse.
  static Measurement none();
  /// Returns false when no rank measured.
  bool exists() const;
};

/// Returns, for each of `all`, the measurement of the worst rank; the same result on every rank. Every rank of `group`
/// must call it with the same number of elements.
std::vector<Measurement> worst_of_ranks(const Group& group, const std::vector<Measurement>& all);

}  // namespace meshtrain

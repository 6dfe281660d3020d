#pragma once

#include <cstdint>
#include <vector>

#include "mesh/group.h"

namespace meshtrain {

/// Something that every rank measured, as one rank found it.
struct Measured {
  double difference = 0;  ///< what decides who is worst; one that is not a number is the worst of all
  double own = 0;         ///< decides among equal ones: this rank's share of the difference
  double value = 0;
  int64_t rank = 0;  ///< of the group
};

/// For each of `all`, as many on every rank of `group`, what the worst rank measured; the same result on every rank.
/// Every rank must call it.
std::vector<Measured> worst_of_ranks(const Group& group, const std::vector<Measured>& all);

}  // namespace meshtrain

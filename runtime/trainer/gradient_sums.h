#pragma once

#include <vector>

#include "fsdp/flat_buffer.h"
#include "mesh/group.h"

namespace meshtrain {

/// The sums of gradients that data parallelism does not make: over cp for every parameter, and over tp for those whose
/// gradient is partial there (design rule 2). Fsdp calls `issue` as each buffer's data-parallel sum is done, in the
/// same order on all ranks; each rank sums the shard that it keeps.
class GradientSums {
 public:
  /// `every`: what every parameter is summed over; `partial`: for partial ones, over tp too.
  GradientSums(Group every, Group partial);

  /// Starts the sums of one buffer. The two parts of the buffer are disjoint and travel side by side.
  void issue(const FlatBuffer& buffer);
  /// Returns when all sums that were issued are done.
  void wait();

 private:
  void issue(const FlatBuffer& buffer, Range range, const Group& group);

  Group every_;
  Group partial_;
  std::vector<Work> works_;
};

}  // namespace meshtrain

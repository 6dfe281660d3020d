#pragma once

#include <vector>

#include "fsdp/flat_buffer.h"
#include "mesh/group.h"

namespace meshtrain {

/// The sums of gradients besides the data-parallel ones: over cp for every parameter, and over tp for parameters whose
/// gradient is partial there (rule 2 of arithmetic). Fsdp calls `issue` when the data-parallel sum of a buffer is
/// complete, in the same order on all ranks; each rank sums its own shard.
class GradientSums {
 public:
  /// `every`: the group over which all parameters are summed; `partial`: the group for partial ones, which includes tp.
  GradientSums(Group every, Group partial);

  /// Starts the sums of one buffer. Its two parts are disjoint, and their sums run at the same time.
  void issue(const FlatBuffer& buffer);
  /// Waits until all issued sums are complete.
  void wait();

 private:
  void issue(const FlatBuffer& buffer, Range range, const Group& group);

  Group every_;
  Group partial_;
  std::vector<Work> works_;
};

}  // namespace meshtrain

#pragma once

#include <vector>

#include "fsdp/flat_buffer.h"
#include "mesh/device_mesh.h"

namespace meshtrain {

/// The sums of gradients that data parallelism does not make: over cp for every parameter, and over tp for those whose
/// gradient is partial there (design rule 2). Fsdp calls `issue` as each buffer's data-parallel sum is done, in the
/// same order on all ranks.
class GradientSums {
 public:
  explicit GradientSums(const DeviceMesh& mesh);

  /// Starts the sums of one buffer. The two parts of the buffer are disjoint and travel side by side.
  void issue(const FlatBuffer& buffer);
  /// Returns when all sums that were issued are done.
  void wait();

 private:
  Group context_;         // for parameters that are cut over tp, or equal there
  Group context_tensor_;  // for partial ones
  std::vector<Work> works_;
};

}  // namespace meshtrain

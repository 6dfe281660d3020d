#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "mesh/backend.h"
#include "mesh/backends/mpi/shared_memory/memory.h"

namespace meshtrain {

/// Memory that Group::window() allocated: a part for each rank of the host (Own), or one for all (Common).
class HostWindow {
 public:
  /// `bytes`: the size of each part.
  HostWindow(std::shared_ptr<HostMapping> mapping, const HostLayout& layout, int64_t bytes, Placement placement);
  ~HostWindow();
  HostWindow(const HostWindow&) = delete;
  HostWindow& operator=(const HostWindow&) = delete;

  /// Returns the bytes that each rank has to reserve.
  static int64_t rank_bytes(const HostLayout& layout, int64_t bytes, Placement placement);

  /// Returns this rank's part as a tensor that keeps the window alive.
  static at::Tensor tensor(std::shared_ptr<HostWindow> window, int64_t numel, const at::TensorOptions& options);

  /// Returns the window in whose part of this rank the tensor lies; nullptr for ordinary memory.
  static std::shared_ptr<HostWindow> around(const at::Tensor& tensor);

  const HostMapping& mapping() const { return *mapping_; }
  bool is_common() const { return placement_ == Placement::Common; }

 private:
  std::shared_ptr<HostMapping> mapping_;
  std::byte* part_;
  int64_t bytes_;
  Placement placement_;
};

}  // namespace meshtrain

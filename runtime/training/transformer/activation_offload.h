#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "mesh/device/copy_stream.h"

namespace meshtrain {

/// Keeps the tensors that a model's blocks save for the backward in pinned host memory, and copies those of a block
/// back to the GPU while the backward of the block after it runs. The device then holds the saved tensors of two
/// blocks, and of the last block, whose backward comes first and which keeps its own. Knows blocks by their calls
/// alone.
///
/// A forward calls begin_forward(), and for each block compute() once or more and then end_block(). Without recording
/// these move nothing. The host's memory is pinned in the first forward and reused by later ones; so are the Meta
/// device's stand-ins, which are not counted as memory of the device.
class ActivationOffload {
 public:
  /// `device`: a GPU, or the Meta device that stands for one. `num_blocks`: of a forward.
  ActivationOffload(at::Device device, int64_t num_blocks);

  void begin_forward();
  /// Returns part() of the current block. Tensors that it saves are offloaded at the end of the block, except small
  /// ones, integers, and those that share memory with one of `staying`: parameters, and what several blocks use.
  at::Tensor compute(const std::vector<at::Tensor>& staying, const std::function<at::Tensor()>& part);
  /// Starts the copies to the host of a block whose result is `y`, which the block itself must not save. Nothing may
  /// change the saved tensors afterwards.
  void end_block(const at::Tensor& y);

  /// Returns the bytes of pinned host memory.
  int64_t host_bytes() const;
  /// Returns the costs of copies so far.
  CopyCosts copy_costs() const;

 private:
  class Host;
  struct Kept;
  struct Block;

  /// Returns the record of a tensor's memory, the same for all tensors of one storage; null for a tensor that stays.
  std::shared_ptr<Kept> keep(const at::Tensor& saved);
  void release_pending();

  std::shared_ptr<Host> host_;
  int64_t num_blocks_;
  int64_t block_ = 0;                           // index of the current block
  std::vector<at::Tensor> staying_;             // of the current part
  std::vector<std::shared_ptr<Kept>> current_;  // of the current block
  std::vector<std::shared_ptr<Kept>> pending_;  // of the block before, whose copies may not have ended
  std::shared_ptr<Block> before_;               // the last block whose copies were started
};

}  // namespace meshtrain

#pragma once

#include <array>

#include "fsdp/unit.h"
#include "mesh/device/copy_stream.h"

namespace meshtrain {

/// Copies offloaded shards (FlatBuffer::is_offloaded()) between a GPU and the host's memory or a disk, in the order of
/// the calls, while the GPU computes. Shards on disk pass through two pinned buffers, which the host fills and empties.
class ShardTransfer {
 public:
  /// Allocates the buffers when shards are on disk, each for the largest shard of `units`. Throws as pinned_zeros()
  /// does.
  ShardTransfer(const std::vector<Unit>& units, const ShardMemory& memory);

  /// Makes later copies wait for all work issued so far to the current stream of this thread.
  void wait_for_current() const { stream_.wait_for_current(); }
  /// Starts to copy a shard to the device.
  void copy_in(const at::Tensor& device, const at::Tensor& shard);
  /// Starts to copy from the device to a shard, which has the values after finish().
  void copy_out(const at::Tensor& shard, const at::Tensor& device);
  /// Calls `issue`, whose collectives run after the copies so far.
  void then(const std::function<void()>& issue) const { stream_.then(issue); }
  /// Returns the point after the device's part of all copies so far.
  StreamMark mark() const { return stream_.mark(); }
  /// Returns when all copies are complete. The host may then read and change shards.
  void finish();

  /// Returns the costs of copies so far.
  CopyCosts copy_costs() const { return stream_.costs(); }

 private:
  struct Buffer {
    at::Tensor memory;  // pinned bytes; undefined when shards are pinned themselves
    at::Tensor shard;   // to be written from `memory` when `used` is reached; undefined: nothing to write
    StreamMark used;
  };

  /// Waits for the buffer's last copy, and writes its values to the shard when they are for one.
  static void release(Buffer& buffer);
  /// Writes earlier values for the shard, so that they neither come after later ones nor are missed by a read.
  void write_to(const at::Tensor& shard);
  Buffer& next_buffer();

  CopyStream stream_;
  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
  bool buffered_ = false;
};

}  // namespace meshtrain

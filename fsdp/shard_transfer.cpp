#include "fsdp/shard_transfer.h"

#include <algorithm>
#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/pinned_memory.h"

namespace meshtrain {
namespace {

/// Returns a view of the first bytes of `memory` with the shape and dtype of `shard`.
at::Tensor view_as(const at::Tensor& memory, const at::Tensor& shard) {
  return memory.narrow(0, 0, static_cast<int64_t>(shard.nbytes())).view(shard.scalar_type());
}

}  // namespace

ShardTransfer::ShardTransfer(const std::vector<Unit>& units, const ShardMemory& memory)
    : stream_(device_of(units), memory.is_on_disk()) {
  const at::Device device = device_of(units);
  buffered_ = memory.is_on_disk() && memory.leaves(device) && !device.is_meta();
  if (!buffered_) return;
  int64_t most = 0;
  for (const Unit& unit : units) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      most = std::max(most, static_cast<int64_t>(buffer.shard_values().nbytes()));
    }
  }
  for (Buffer& buffer : buffers_) buffer.memory = pinned_zeros(most, at::kByte, device, "");
}

void ShardTransfer::release(Buffer& buffer) {
  buffer.used.synchronize();
  const at::Tensor shard = std::exchange(buffer.shard, at::Tensor());
  if (!shard.defined()) return;
  shard.copy_(view_as(buffer.memory, shard));
  set_aside(shard);
}

void ShardTransfer::write_to(const at::Tensor& shard) {
  for (Buffer& buffer : buffers_) {
    if (buffer.shard.defined() && buffer.shard.is_alias_of(shard)) release(buffer);
  }
}

ShardTransfer::Buffer& ShardTransfer::next_buffer() {
  Buffer& buffer = buffers_[next_];
  next_ = (next_ + 1) % buffers_.size();
  release(buffer);
  return buffer;
}

void ShardTransfer::copy_in(const at::Tensor& device, const at::Tensor& shard) {
  if (!buffered_) return stream_.copy(device, shard, CopyDirection::ToDevice);
  write_to(shard);
  Buffer& buffer = next_buffer();
  const at::Tensor pinned = view_as(buffer.memory, shard);
  pinned.copy_(shard);
  set_aside(shard);
  stream_.copy(device, pinned, CopyDirection::ToDevice);
  buffer.used = stream_.mark();
}

void ShardTransfer::copy_out(const at::Tensor& shard, const at::Tensor& device) {
  if (!buffered_) return stream_.copy(shard, device, CopyDirection::ToHost);
  write_to(shard);
  Buffer& buffer = next_buffer();
  stream_.copy(view_as(buffer.memory, shard), device, CopyDirection::ToHost);
  buffer.shard = shard;
  buffer.used = stream_.mark();
}

void ShardTransfer::finish() {
  if (!buffered_) return stream_.mark().synchronize();
  for (Buffer& buffer : buffers_) release(buffer);
}

}  // namespace meshtrain

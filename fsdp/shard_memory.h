#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>

namespace meshtrain {

/// The memory of a rank's shards, their gradients and the optimizer's state. It is ordinary memory of their device,
/// host memory next to a GPU, or a file mapped into memory, whose unused pages the system evicts to disk. A value;
/// copies share the file and the counts.
///
/// A rank's file holds the optimizer's state, shards of gradients (FullShard, ShardGradOp) and shards of parameters
/// (FullShard, and all modes where shards have another dtype), each unit's part rounded up to pages.
class ShardMemory {
 public:
  /// Ordinary memory.
  ShardMemory() = default;
  /// Returns host memory that a GPU copies from and to while it computes (pinned_zeros()). For models on the CPU it is
  /// ordinary memory.
  static ShardMemory on_host();
  /// Returns memory in a file of this rank in `folder`, which is made when its parent exists. The first zeros() makes
  /// both, so that a failure of one rank alone comes when no rank is in a collective. The file has no name from the
  /// moment it is opened: it disappears with the process, whatever ends it.
  static ShardMemory on_disk(const std::filesystem::path& folder);

  bool is_on_disk() const { return file_ != nullptr; }
  /// Returns true when the shards of a model on `device` are not in the memory of `device`. They are then CPU tensors.
  bool leaves(at::Device device) const;
  /// Returns true when the shards of a model on `device` are not in ordinary memory of `device`: on disk, or
  /// leaves(device).
  bool is_apart_from(at::Device device) const { return is_on_disk() || leaves(device); }

  /// Returns a tensor of zeros for a model on the device of `options`; a CPU tensor when leaves(device). Reserves its
  /// space on disk, so that a disk that is too small is reported at the start. Throws std::runtime_error when the disk
  /// lacks space or the system refuses to pin memory. For the Meta device, memory elsewhere does not count as the
  /// device's.
  at::Tensor zeros(int64_t numel, const at::TensorOptions& options) const;

  /// Throws std::runtime_error when the system could not write some of the file, now or at an earlier call: those
  /// values are lost, and reads may return zeros. Values that were read before this returned are right. Waits for no
  /// disk.
  void check_written() const;

  /// Returns the bytes of the file that zeros() has allocated so far, full pages each; 0 for ordinary memory.
  int64_t disk_bytes() const;
  /// Returns the bytes of host memory next to a GPU that zeros() has allocated so far; 0 for other memory.
  int64_t host_bytes() const;

 private:
  class File;
  std::shared_ptr<File> file_;
  std::shared_ptr<int64_t> host_bytes_;  // null: not on_host()
};

// Advice about tensors of a ShardMemory; without effect on those in ordinary memory. Values do not change.

/// Starts to read `tensor`, which is used soon.
void fetch_ahead(const at::Tensor& tensor);
/// Evicts `tensor`, which is not used for a time, from this process's memory, and starts to write it to disk.
void set_aside(const at::Tensor& tensor);

/// Calls `update` with each of `parts` in turn, while the tensors() of the next are read from the disk and those of the
/// one before are written to it, if they lie there.
template <class Parts, class Update>
void stream(Parts& parts, const Update& update) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i + 1 < parts.size()) {
      for (const at::Tensor& tensor : parts[i + 1].tensors()) fetch_ahead(tensor);
    }
    update(parts[i]);
    for (const at::Tensor& tensor : parts[i].tensors()) set_aside(tensor);
  }
}

}  // namespace meshtrain

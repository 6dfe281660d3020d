#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>

namespace meshtrain {

/// Where a rank keeps its shards, their gradients and the optimizer's state: in memory, or in a file that is mapped
/// into memory, so that the system writes to disk what is not being used. A value; copies share the file.
class ShardMemory {
 public:
  /// In memory.
  ShardMemory() = default;
  /// In a file of this rank in `folder`, which is made when it alone is not there. Both are made by the first zeros():
  /// what may fail on one rank alone waits until no rank is in a collective. The file has no name from the moment it is
  /// opened: it is gone when the process is, whatever ends it.
  static ShardMemory on_disk(const std::filesystem::path& folder);

  bool is_on_disk() const { return file_ != nullptr; }

  /// A tensor of zeros. On disk its space is reserved here, so that a disk that is too small is met at the start:
  /// throws std::runtime_error. What is on disk is of the CPU; other devices get memory of their own.
  at::Tensor zeros(int64_t numel, const at::TensorOptions& options) const;

  /// Throws std::runtime_error when the system could not write some of the file, now or at an earlier call: those
  /// values are lost, and what is read in their place may be zeros. What was read before this returned is right. Waits
  /// for no disk.
  void check_written() const;

  /// Bytes of the file that zeros() has given out so far, whole pages each; 0 in memory.
  int64_t disk_bytes() const;

 private:
  class File;
  std::shared_ptr<File> file_;
};

// Advice about tensors of a ShardMemory; without effect on those in memory. Values stay what they are.

/// `tensor` is used soon: starts to read it.
void fetch_ahead(const at::Tensor& tensor);
/// `tensor` is not used for a time: it leaves this process's memory, and its way to the disk begins.
void set_aside(const at::Tensor& tensor);

/// Calls `update` with each of `parts` in turn, while the tensors() of the next are read from the disk and those of the
/// one before are written, if that is where they are.
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

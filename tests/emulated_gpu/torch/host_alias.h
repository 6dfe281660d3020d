#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshtrain::emulated {

/// Views of tensors of the emulated GPU that the CPU's operators accept: the same memory with another device. They keep
/// no memory alive; the code that runs an operator on aliases must do that.
class HostAliases {
 public:
  /// Returns the alias of a tensor of the GPU, always the same one for the same tensor.
  at::Tensor of(const at::Tensor& tensor);
  /// Returns the GPU tensor for an operator's result: the tensor whose alias it is, a view of a tensor's memory, or a
  /// new tensor (`is_new`) with memory for the result, whose values are not copied.
  at::Tensor original(const at::Tensor& result, bool* is_new);
  /// Returns the tensors that the operator has resized, with their aliases. They get new memory on the GPU; values are
  /// not copied.
  std::vector<std::pair<at::Tensor, at::Tensor>> grown();

  c10::Device device() const { return device_; }

 private:
  struct Memory {
    c10::Storage gpu, host;
    size_t bytes;
  };
  struct Pair {
    at::Tensor gpu, host;
  };

  c10::Storage host_memory(const c10::Storage& gpu);

  c10::Device device_ = c10::Device(c10::kCUDA, 0);
  std::vector<Memory> memories_;
  std::vector<Pair> pairs_;
};

/// Returns a tensor of `storage` with the sizes, strides, offset and dtype of `like`.
at::Tensor with_storage(const c10::Storage& storage, const at::Tensor& like, c10::DispatchKey device);

/// Allocates memory of the current GPU.
c10::Storage gpu_storage(size_t bytes);

}  // namespace meshtrain::emulated

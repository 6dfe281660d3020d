#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshtrain::emulated {

/// Tensors of the emulated GPU as the CPU's operators take them: the same memory under another device. It keeps no
/// memory alive; whoever runs an operator on aliases sees to it that theirs is there.
class HostAliases {
 public:
  /// The alias of a tensor of the GPU; the same one for the same tensor.
  at::Tensor of(const at::Tensor& tensor);
  /// Of what an operator gave back: the tensor whose alias it is; a view of a tensor's memory; else a new tensor, which
  /// `is_new` says, with room for the result, whose values are not copied.
  at::Tensor original(const at::Tensor& result, bool* is_new);
  /// Tensors that the operator has made larger have room of their own on the GPU, where the values are not copied.
  /// Returns them with their aliases.
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

/// A tensor of `storage` with the sizes, strides, offset and dtype of `like`.
at::Tensor with_storage(const c10::Storage& storage, const at::Tensor& like, c10::DispatchKey device);

/// Memory of the current GPU.
c10::Storage gpu_storage(size_t bytes);

}  // namespace meshtrain::emulated

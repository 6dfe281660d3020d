#include "tests/emulated_gpu/torch/host_alias.h"

#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "mesh/device/aten.h"

namespace meshtrain::emulated {

at::Tensor with_storage(const c10::Storage& storage, const at::Tensor& like, c10::DispatchKey device) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(device), like.dtype());
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return tensor;
}

c10::Storage gpu_storage(size_t bytes) {
  c10::Allocator* const allocator = c10::cuda::CUDACachingAllocator::get();
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, allocator,
                                               /*resizable=*/true);
}

c10::Storage HostAliases::host_memory(const c10::Storage& gpu) {
  for (const Memory& memory : memories_) {
    if (memory.gpu.is_alias_of(gpu)) return memory.host;
  }
  const c10::Storage host = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), gpu.nbytes(),
      c10::DataPtr(const_cast<void*>(gpu.data()), c10::Device(c10::kCPU)), c10::GetCPUAllocator(), /*resizable=*/true);
  memories_.push_back({gpu, host, gpu.nbytes()});
  return host;
}

at::Tensor HostAliases::of(const at::Tensor& tensor) {
  device_ = tensor.device();
  for (const Pair& pair : pairs_) {
    if (pair.gpu.is_same(tensor)) return pair.host;
  }
  const at::Tensor host = with_storage(host_memory(tensor.storage()), tensor, c10::DispatchKey::CPU);
  pairs_.push_back({tensor, host});
  return host;
}

at::Tensor HostAliases::original(const at::Tensor& result, bool* is_new) {
  *is_new = false;
  for (const Pair& pair : pairs_) {
    if (pair.host.is_same(result)) return pair.gpu;
  }
  for (const Memory& memory : memories_) {
    if (memory.host.is_alias_of(result.storage())) return with_storage(memory.gpu, result, c10::DispatchKey::CUDA);
  }
  *is_new = true;
  return with_storage(gpu_storage(result.storage().nbytes()), result, c10::DispatchKey::CUDA);
}

std::vector<std::pair<at::Tensor, at::Tensor>> HostAliases::grown() {
  std::vector<std::pair<at::Tensor, at::Tensor>> grown;
  for (const Pair& pair : pairs_) {
    if (pair.gpu.sizes() == pair.host.sizes()) continue;
    c10::TensorImpl* const impl = pair.gpu.unsafeGetTensorImpl();
    if (pair.host.storage().nbytes() > pair.gpu.storage().nbytes()) {
      impl->set_storage_keep_dtype(gpu_storage(pair.host.storage().nbytes()));
    }
    impl->set_sizes_and_strides(pair.host.sizes(), pair.host.strides(), pair.host.storage_offset());
    grown.emplace_back(pair.gpu, pair.host);
  }
  return grown;
}

}  // namespace meshtrain::emulated

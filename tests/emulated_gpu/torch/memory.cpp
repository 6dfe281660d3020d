// Operators that make tensors of the emulated GPU, change their memory, or copy between GPU and host.
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/native/Resize.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "mesh/device/aten.h"
#include "tests/emulated_gpu/cuda/streams.h"
#include "tests/emulated_gpu/torch/host_alias.h"

namespace meshtrain::emulated {
namespace {

constexpr c10::DispatchKeySet kGpu(c10::DispatchKey::CUDA);

c10::cuda::OptionalCUDAGuard on(std::optional<c10::Device> device) {
  return c10::cuda::OptionalCUDAGuard(device && device->has_index() ? device : std::nullopt);
}

/// Fills unwritten memory with NaN: otherwise it would have the values of an earlier tensor.
at::Tensor poisoned(at::Tensor tensor) {
  const size_t bytes = tensor.storage().nbytes();
  if (bytes == 0) return tensor;
  launch(c10::cuda::getCurrentCUDAStream(),
         [bytes, data = tensor.storage().mutable_data()] { std::memset(data, 0xff, bytes); });
  return tensor;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<c10::Device> device, std::optional<bool> pinned,
                 std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "only tensors of the CPU are pinned");
  at::globalContext().lazyInitDevice(at::kCUDA);
  const auto guard = on(device);
  return poisoned(at::detail::empty_generic(sizes, c10::cuda::CUDACachingAllocator::get(), kGpu,
                                            dtype.value_or(at::kFloat), format));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  const auto guard = on(device);
  return poisoned(at::detail::empty_strided_generic(sizes, strides, c10::cuda::CUDACachingAllocator::get(), kGpu,
                                                    dtype.value_or(at::kFloat)));
}

/// Returns a view of the same memory.
at::Tensor seen_as(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                             self.key_set(), self.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return view;
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return seen_as(self, sizes, strides, offset.value_or(self.storage_offset()));
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  const at::DimVector inferred = at::infer_size_dv(sizes, self.numel());
  const auto strides = at::detail::computeStride(self.sizes(), self.strides(), inferred);
  TORCH_CHECK(strides.has_value(), "view: ", self.sizes(), " of strides ", self.strides(), " is not seen as ", sizes);
  return seen_as(self, inferred, *strides, self.storage_offset());
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return seen_as(self, sizes, strides, self.storage_offset());
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t bytes = (self.storage_offset() + self.numel()) * self.element_size();
  if (bytes <= self.storage().nbytes()) return self;
  const c10::Storage larger = gpu_storage(bytes), old = self.storage();
  if (old.nbytes() > 0) {
    C10_CUDA_CHECK(cudaMemcpyAsync(larger.mutable_data(), old.data(), old.nbytes(), cudaMemcpyDeviceToDevice,
                                   c10::cuda::getCurrentCUDAStream()));
  }
  impl->set_storage_keep_dtype(larger);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_storage(self, gpu_storage(0), 0, {0}, {});
}

/// Throws when MESHTRAIN_EMULATED_COPIES_FAIL names a path that exists now.
void fail_if_asked() {
  const char* const path = std::getenv("MESHTRAIN_EMULATED_COPIES_FAIL");
  if (path != nullptr && std::filesystem::exists(path)) {
    throw std::runtime_error("a copy, as MESHTRAIN_EMULATED_COPIES_FAIL asks");
  }
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  if (self.is_same(from) || self.numel() == 0) return self;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const at::Tensor& host = self.is_cuda() ? from : self;
  const bool between = !self.is_cuda() || !from.is_cuda();
  const bool as_it_is = self.scalar_type() == from.scalar_type() && self.is_contiguous() && from.is_contiguous() &&
                        self.sizes() == from.sizes();
  if (between && non_blocking && as_it_is && host.is_pinned()) {
    // Like CUDA's allocator of pinned memory: the memory is not reused before the copy is complete.
    const c10::Storage kept = host.storage();
    give(stream, [kept, to = self.mutable_data_ptr(), values = from.const_data_ptr(), bytes = self.nbytes()] {
      fail_if_asked();
      std::memcpy(to, values, bytes);
    });
    return self;
  }
  TORCH_CHECK(!between || !is_captured(stream),
              "copy_ between a GPU and memory that is not pinned, or into another "
              "dtype or order: operation not permitted when stream is capturing");
  HostAliases aliases;
  const at::Tensor to = self.is_cuda() ? aliases.of(self) : self;
  const at::Tensor values = from.is_cuda() ? aliases.of(from) : from;
  const auto work = [to, values] { at::Tensor(to).copy_(values); };
  between ? run(stream, work) : launch(stream, work);
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_", &set_nothing);
  library.impl("copy_", &copy);
}

}  // namespace meshtrain::emulated

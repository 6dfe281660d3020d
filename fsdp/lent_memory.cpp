#include "fsdp/lent_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>

namespace meshtrain {
namespace {

void let_go(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage));
}

}  // namespace

at::Tensor without_memory(int64_t numel, const at::TensorOptions& options) {
  at::Tensor tensor = at::empty({numel}, options);
  take_memory(tensor);
  return tensor;
}

void lend_memory(const at::Tensor& tensor, const at::Tensor& memory, int64_t offset) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  c10::StorageImpl* const lender = memory.storage().unsafeGetStorageImpl();
  auto* const begin = static_cast<std::byte*>(memory.data_ptr());  // null on the Meta device
  c10::raw::intrusive_ptr::incref(lender);
  storage->set_data_ptr_noswap(c10::DataPtr(begin ? begin + offset : nullptr, lender, &let_go, tensor.device()));
}

void take_memory(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
}

}  // namespace meshtrain

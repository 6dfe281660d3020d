#include "fsdp/lent_memory.h"

#include <c10/core/StorageImpl.h>

#include <cstddef>

namespace meshtrain {

void lend_memory(const at::Tensor& tensor, const at::Tensor& memory, int64_t offset) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  auto* begin = static_cast<std::byte*>(memory.data_ptr());  // null on the Meta device
  storage->set_data_ptr_noswap(c10::DataPtr(begin ? begin + offset : nullptr, tensor.device()));
}

void take_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
}

}  // namespace meshtrain

#include "mesh/base/files/file_bytes.h"

namespace meshtrain {

FileBytes::FileBytes(int64_t size) {
  if (size > 0) bytes_ = {new std::byte[static_cast<size_t>(size)], Free{size}};
}

void FileBytes::Free::operator()(std::byte* bytes) const {
  delete[] bytes;
}

}  // namespace meshtrain

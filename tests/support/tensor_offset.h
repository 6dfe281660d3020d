#pragma once

#include <cstdint>
#include <string>

#include "runtime/training/safetensors/folder.h"

namespace meshtrain::testing {

/// Returns the byte of `file` at which tensor `name` begins, where tests do damage.
inline int64_t tensor_offset(const SafetensorsFile& file, const std::string& name) {
  int64_t offset = file.header().size();
  for (const TensorEntry& entry : file.entries()) {
    if (entry.name == name) break;
    offset += num_bytes(entry);
  }
  return offset;
}

}  // namespace meshtrain::testing

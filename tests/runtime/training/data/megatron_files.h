#pragma once

#include <cstring>

#include "tests/support/files.h"

namespace meshtrain::testing {

/// The fields of a Megatron index.
struct MegatronFields {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t code = 8;  // uint16
  std::vector<int32_t> lengths;
  std::vector<int64_t> pointers;
  std::vector<int64_t> documents;

  std::string bytes() const {
    std::string text = magic;
    const auto add = [&](const auto& value) { text.append(reinterpret_cast<const char*>(&value), sizeof value); };
    add(version);
    add(code);
    add(static_cast<uint64_t>(lengths.size()));
    add(static_cast<uint64_t>(documents.size()));
    for (const int32_t length : lengths) add(length);
    for (const int64_t pointer : pointers) add(pointer);
    for (const int64_t document : documents) add(document);
    return text;
  }
};

/// Returns the index of adjacent sequences of these lengths, one document each, in a file of ids of `width` bytes.
inline MegatronFields megatron_fields(uint8_t code, int64_t width, const std::vector<int32_t>& lengths) {
  MegatronFields fields;
  fields.code = code;
  fields.lengths = lengths;
  int64_t next = 0;
  for (const int32_t length : lengths) {
    fields.documents.push_back(static_cast<int64_t>(fields.pointers.size()));
    fields.pointers.push_back(next);
    next += length * width;
  }
  fields.documents.push_back(static_cast<int64_t>(lengths.size()));
  return fields;
}

}  // namespace meshtrain::testing

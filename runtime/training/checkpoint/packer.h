#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/box.h"

namespace meshtrain {

/// A packer of numbers and texts into few bytes, for another rank of this job.
class Packer {
 public:
  /// Appends a number, 7 bits a byte, the lowest first: a small number is short. Not for negative ones.
  void number(int64_t value) {
    auto rest = static_cast<uint64_t>(value);
    for (; rest >= 0x80; rest >>= 7) bytes_ += static_cast<char>(rest | 0x80);
    bytes_ += static_cast<char>(rest);
  }
  /// Appends the bytes of `value`, as they are in memory.
  template <typename Value>
  void plain(Value value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(const std::string& value) {
    number(static_cast<int64_t>(value.size()));
    bytes_ += value;
  }
  void numbers(const std::vector<int64_t>& values) {
    number(static_cast<int64_t>(values.size()));
    for (const int64_t value : values) number(value);
  }
  /// Appends a box of a tensor whose number of dims the reader knows.
  void box(const Box& box) {
    for (const int64_t value : box.start) number(value);
    for (const int64_t value : box.size) number(value);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// A reader of what a Packer wrote, in the same order. Throws std::runtime_error for bytes that end too soon.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  int64_t number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(next(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    return static_cast<int64_t>(value);
  }
  template <typename Value>
  Value plain() {
    Value value;
    std::memcpy(&value, next(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(next(static_cast<size_t>(number()))); }
  std::vector<int64_t> numbers() { return some(static_cast<size_t>(number())); }
  Box box(size_t num_dims) {
    std::vector<int64_t> start = some(num_dims);
    return {std::move(start), some(num_dims)};
  }

 private:
  std::vector<int64_t> some(size_t count) {
    std::vector<int64_t> values;
    for (; count > 0; --count) values.push_back(number());
    return values;
  }
  std::string_view next(size_t size) {
    if (size > rest_.size()) throw std::runtime_error("the data that another rank sent is too short");
    const std::string_view part = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return part;
  }

  std::string_view rest_;
};

}  // namespace meshtrain

#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain::testing {

/// A source of damage for files; equal for equal seeds.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  /// Returns a number below `count`.
  size_t below(size_t count) { return static_cast<size_t>(random_() % count); }
  /// Returns true in one case out of `n`.
  bool once_in(size_t n) { return below(n) == 0; }

  /// Returns `file` with some bits, bytes and ranges changed, inserted, removed, doubled or cut off, and numbers of 1,
  /// 2, 4 and 8 bytes set to their limits.
  std::string bytes(std::string file);
  /// Does the same without moving any byte.
  std::string in_place(std::string file);
  /// Does the same for a text that is JSON or similar, and for its values: numbers at every limit, values of other
  /// kinds, nested lists, repeated keys. Damages a long text mostly in its first and last `edge` bytes, where it
  /// differs from many others.
  std::string text(std::string file, size_t edge = 4096);

 private:
  struct Span {
    size_t begin, size;
  };

  size_t few();
  void change_bytes(std::string& file, Span where, size_t kinds = 9);
  void change_value(std::string& file, Span where);
  std::string value();
  Span around(size_t size, size_t edge);

  std::mt19937_64 random_;
};

}  // namespace meshtrain::testing

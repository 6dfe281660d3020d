#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain::testing {

/// Damages files, the same way for the same seed.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  /// A number below `count`.
  size_t below(size_t count) { return static_cast<size_t>(random_() % count); }
  /// Of one case in `n`.
  bool once_in(size_t n) { return below(n) == 0; }

  /// Some bits, bytes and ranges changed, put in, taken out, doubled or cut off; numbers of 1, 2, 4 and 8 bytes at
  /// their limits.
  std::string bytes(std::string file);
  /// The same, but every byte stays where it was.
  std::string in_place(std::string file);
  /// The same of a text that is JSON or like it, and of its values: numbers at every limit, values of other kinds,
  /// lists in lists, keys twice. Of a long text, mostly where it is not one of many like it: in its first and last
  /// `edge` bytes.
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

#pragma once

#include <cstdint>

namespace meshtrain::jinja {

/// Limits for one rendering, so that no template can hang or exhaust memory.
struct Limits {
  int64_t work =
      1'000'000'000;  ///< bytes that are looked at, and kNodeWork for each part of an expression or statement
  int64_t made_bytes = int64_t{256} << 20;  ///< bytes of texts and elements of lists that are made, the output included
  int depth = 600;  ///< statements and expressions inside each other while they run, through macros and loops too
};

/// The work and memory that one rendering has used. Not for several threads.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  /// Call before the work is done. Throws Failure beyond the limit.
  void work(int64_t units);
  /// Call before the memory is allocated. Throws Failure beyond the limit.
  void make(int64_t bytes);
  void enter();
  void leave() { --depth_; }

 private:
  Limits limits_;
  int64_t work_ = 0;
  int64_t made_ = 0;
  int depth_ = 0;
};

constexpr int64_t kNodeWork = 20;      // of one part of an expression or statement
constexpr int64_t kElementBytes = 48;  // of one element of a list or dictionary

}  // namespace meshtrain::jinja

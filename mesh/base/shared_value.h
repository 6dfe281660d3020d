#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

namespace meshtrain {

/// A value of plain memory that one process writes and others read while it does. It has two copies that are written in
/// turn, so that the other one stays complete when the writer is stopped in the middle of a write. Zeroed memory holds
/// a zeroed value.
template <class Value>
class SharedValue {
  static_assert(std::is_trivially_copyable_v<Value> && std::atomic<uint64_t>::is_always_lock_free);

 public:
  /// Writes a value. One thread at a time.
  void write(const Value& value) {
    const uint64_t next = num_writes_.load(std::memory_order_relaxed) + 1;
    copies_[next % 2] = value;
    num_writes_.store(next, std::memory_order_release);
  }

  /// Returns the value that was written last. Beside a writer that never pauses it gives up after a few tries, and may
  /// return parts of two values.
  Value read() const {
    Value value{};
    for (int tries = 0; tries < 10; ++tries) {
      const uint64_t before = num_writes_.load(std::memory_order_acquire);
      value = copies_[before % 2];
      std::atomic_thread_fence(std::memory_order_acquire);
      if (num_writes_.load(std::memory_order_relaxed) == before) break;
    }
    return value;
  }

 private:
  std::atomic<uint64_t> num_writes_;
  std::array<Value, 2> copies_;
};

}  // namespace meshtrain

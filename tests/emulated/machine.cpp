#include "tests/emulated/machine.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/fiber.h"
#include "tests/emulated/shared_memory.h"

// Symbols from the linker: the start of the nops of __launch_bounds__ (include/cuda_runtime.h).
extern "C" {
extern const char* const __start___patchable_function_entries[] __attribute__((weak));
extern const char* const __stop___patchable_function_entries[] __attribute__((weak));
}

namespace meshtrain::emulated {
namespace {

constexpr unsigned kWarp = 32, kMostThreads = 1024;

enum class State { Ready, Waits, Left };
enum class Wait { Block, Warp, Exchange };

struct Thread {
  explicit Thread(std::function<void()> body) : fiber(std::move(body)) {}

  Fiber fiber;
  uint3 index{};
  State state = State::Left;
  // Reason for the wait, when it waits.
  Wait wait = Wait::Block;
  unsigned mask = 0, from = 0;
  uint64_t given = 0, received = 0;
  std::source_location where;
};

std::string text_of(const dim3& size) {
  return "(" + std::to_string(size.x) + ", " + std::to_string(size.y) + ", " + std::to_string(size.z) + ")";
}
std::string text_of(const uint3& index) {
  return text_of(dim3(index.x, index.y, index.z));
}
std::string text_of(unsigned mask) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

std::string what_it_waits_for(const Thread& thread) {
  const std::string what = thread.wait == Wait::Block  ? "in __syncthreads"
                           : thread.wait == Wait::Warp ? "in __syncwarp of lanes " + text_of(thread.mask)
                                                       : "in a shuffle of lanes " + text_of(thread.mask);
  const std::string file = thread.where.file_name();
  return what + ", " + file.substr(file.rfind('/') + 1) + ":" + std::to_string(thread.where.line());
}

/// Returns how many threads a kernel's __launch_bounds__ allows, the number of nops before it; nullopt without nops.
std::optional<unsigned> launch_bound(const void* kernel) {
#ifdef __aarch64__
  constexpr ptrdiff_t kNop = 4;
#else
  constexpr ptrdiff_t kNop = 1;
#endif
  const char* const entry = static_cast<const char*>(kernel);
  ptrdiff_t nearest = 0;
  for (auto* nops = __start___patchable_function_entries; nops != __stop___patchable_function_entries; ++nops) {
    if (const ptrdiff_t bytes = entry - *nops; bytes > 0 && (nearest == 0 || bytes < nearest)) nearest = bytes;
  }
  // The nops of another kernel are followed by that kernel.
  if (nearest == 0 || nearest % kNop != 0 || !std::equal(entry - nearest + kNop, entry, entry - nearest)) return {};
  return static_cast<unsigned>(nearest / kNop);
}

void check_size(const void* kernel, const dim3& grid, const dim3& block) {
  const auto refuse = [&](const std::string& why) {
    throw Error("a grid of " + text_of(grid) + " blocks of " + text_of(block) + " threads: " + why);
  };
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) refuse("there is no block");
  if (block.x == 0 || block.y == 0 || block.z == 0) refuse("there is no thread");
  if (grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535)
    refuse("CUDA has up to (2147483647, 65535, 65535) blocks");
  if (block.x > 1024 || block.y > 1024 || block.z > 64 || uint64_t{block.x} * block.y * block.z > kMostThreads) {
    refuse("CUDA has up to (1024, 1024, 64) threads in a block, and up to 1024 in all");
  }
  const std::optional<unsigned> bound = launch_bound(kernel);
  if (!bound) refuse("the kernel has no __launch_bounds__: it may need more registers than there are");
  if (block.x * block.y * block.z > *bound) refuse("the kernel's __launch_bounds__ are " + std::to_string(*bound));
}

class Machine {
 public:
  void set_order(Order order, uint64_t seed) {
    order_ = order;
    random_.seed(seed);
  }
  void launch(dim3 grid, dim3 block, const std::function<void()>& thread);

  void wait(Wait wait, unsigned mask, uint64_t given, unsigned from, const std::source_location& where);
  uint64_t received() const { return threads_[running_]->received; }
  unsigned lane() const { return running_ % kWarp; }
  [[noreturn]] void misaligned(const char* what);

 private:
  template <class With>
  void each(uint64_t count, With with);
  void run_block();
  void run_warp(unsigned first);
  bool let_go(unsigned first);
  void resume(unsigned thread);
  void check_mask(unsigned index) const;
  void check_meeting() const;
  [[noreturn]] void stop(const Thread& thread, const std::string& problem) const;
  unsigned lanes_from(unsigned first) const { return std::min(kWarp, count_ - first); }

  Order order_ = Order::Forward;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Thread>> threads_;  // kept for the next blocks
  unsigned count_ = 0;                            // number of threads in a block
  const std::function<void()>* body_ = nullptr;
  unsigned running_ = 0;
  bool on_thread_ = false;
  std::string misaligned_;  // error of the thread that ran last
};

/// Calls with(0) ... with(count - 1), in the order of set_order().
template <class With>
void Machine::each(uint64_t count, With with) {
  if (order_ == Order::Forward) {
    for (uint64_t i = 0; i < count; ++i) with(i);
  } else if (order_ == Order::Backward) {
    for (uint64_t i = count; i-- > 0;) with(i);
  } else {
    std::vector<uint64_t> indices(count);
    std::iota(indices.begin(), indices.end(), uint64_t{0});
    std::shuffle(indices.begin(), indices.end(), random_);
    for (const uint64_t index : indices) with(index);
  }
}

void Machine::launch(dim3 grid, dim3 block, const std::function<void()>& thread) {
  gridDim = grid;
  blockDim = block;
  body_ = &thread;
  count_ = block.x * block.y * block.z;
  while (threads_.size() < count_) {
    threads_.push_back(std::make_unique<Thread>([this, i = threads_.size()] {
      (*body_)();
      threads_[i]->state = State::Left;
    }));
  }
  for (unsigned i = 0; i < count_; ++i) {
    threads_[i]->index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
  }
  try {
    each(uint64_t{grid.x} * grid.y * grid.z, [&](uint64_t i) {
      blockIdx = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                  static_cast<unsigned>(i / grid.x / grid.y)};
      run_block();
    });
  } catch (...) {
    for (const auto& left : threads_) left->fiber.restart();
    throw;
  }
}

void Machine::run_block() {
  forget_shared_memory();
  for (unsigned i = 0; i < count_; ++i) threads_[i]->state = State::Ready;
  const unsigned warps = (count_ + kWarp - 1) / kWarp;
  for (;;) {
    each(warps, [&](uint64_t warp) { run_warp(static_cast<unsigned>(warp) * kWarp); });
    if (std::all_of(threads_.begin(), threads_.begin() + count_,
                    [](const auto& thread) { return thread->state == State::Left; })) {
      return;
    }
    check_meeting();
    for (unsigned i = 0; i < count_; ++i) threads_[i]->state = State::Ready;
  }
}

/// Runs a warp until all of its lanes have left or wait for the block. `first`: its first lane.
void Machine::run_warp(unsigned first) {
  do {
    each(lanes_from(first), [&](uint64_t index) {
      const unsigned thread = first + static_cast<unsigned>(index);
      if (threads_[thread]->state == State::Ready) resume(thread);
    });
  } while (let_go(first));
  for (unsigned i = first; i < first + lanes_from(first); ++i) {
    const Thread& thread = *threads_[i];
    if (thread.state != State::Waits || thread.wait == Wait::Block) continue;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if ((thread.mask >> lane & 1) == 0) continue;
      const Thread& other = *threads_[first + lane];
      const std::string who = ": thread " + text_of(other.index);
      if (other.state == State::Left) stop(thread, "waits " + what_it_waits_for(thread) + who + " has left");
      if (other.wait != thread.wait || other.mask != thread.mask) {
        stop(thread, "waits " + what_it_waits_for(thread) + who + " waits " + what_it_waits_for(other));
      }
    }
  }
}

/// Continues the lanes that wait only for each other. Returns whether there are any.
bool Machine::let_go(unsigned first) {
  bool any = false;
  const auto there = [&](unsigned mask, auto holds) {
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1) != 0 && !holds(*threads_[first + lane])) return false;
    }
    return true;
  };
  for (unsigned i = first; i < first + lanes_from(first); ++i) {
    const Thread& thread = *threads_[i];
    if (thread.state != State::Waits || thread.wait == Wait::Block) continue;
    const unsigned mask = thread.mask;
    if (!there(mask, [&](const Thread& other) {
          return other.state == State::Waits && other.wait == thread.wait && other.mask == mask;
        })) {
      continue;
    }
    there(mask, [&](Thread& other) {
      other.received = threads_[first + other.from]->given;
      other.state = State::Ready;
      return true;
    });
    any = true;
  }
  return any;
}

/// Checks, when no thread can run, that all wait for the block in one line of the kernel.
void Machine::check_meeting() const {
  const auto begin = threads_.begin(), end = begin + count_;
  const Thread& one = **std::find_if(begin, end, [](const auto& thread) { return thread->state == State::Waits; });
  for (auto other = begin; other != end; ++other) {
    const Thread& thread = **other;
    if (thread.state == State::Left) {
      stop(one, "waits " + what_it_waits_for(one) + ": thread " + text_of(thread.index) + " has left");
    }
    if (thread.where.line() != one.where.line() ||
        std::string(thread.where.file_name()) != std::string(one.where.file_name())) {
      stop(one, "waits " + what_it_waits_for(one) + ": thread " + text_of(thread.index) + " waits " +
                    what_it_waits_for(thread));
    }
  }
}

void Machine::resume(unsigned thread) {
  running_ = thread;
  threadIdx = threads_[thread]->index;
  on_thread_ = true;
  threads_[thread]->fiber.resume();
  on_thread_ = false;
  if (!misaligned_.empty()) stop(*threads_[thread], std::exchange(misaligned_, {}));
  check_mask(thread);
}

/// Checks that the lanes for which a thread waits exist, and that it is one of them.
void Machine::check_mask(unsigned index) const {
  const Thread& thread = *threads_[index];
  if (thread.state != State::Waits || thread.wait == Wait::Block) return;
  const unsigned lane = index % kWarp, lanes = lanes_from(index - lane);
  const auto refuse = [&](const std::string& why) { stop(thread, "is " + what_it_waits_for(thread) + ", " + why); };
  if (lanes < kWarp && thread.mask >> lanes != 0) refuse("and its warp has " + std::to_string(lanes));
  if ((thread.mask >> lane & 1) == 0) refuse("and is not one of them");
  if (thread.from >= kWarp || (thread.mask >> thread.from & 1) == 0) {
    refuse("and asks lane " + std::to_string(thread.from));
  }
}

void Machine::stop(const Thread& thread, const std::string& problem) const {
  throw Error("block " + text_of(blockIdx) + " of " + text_of(gridDim) + ", thread " + text_of(thread.index) + " of " +
              text_of(blockDim) + ": " + problem);
}

// Only suspends: a thread's stack is never destroyed after a launch, so texts are made on the host's stack.
void Machine::wait(Wait wait, unsigned mask, uint64_t given, unsigned from, const std::source_location& where) {
  Thread& thread = *threads_[running_];
  thread.wait = wait;
  thread.mask = mask;
  thread.given = given;
  thread.from = from;
  thread.where = where;
  thread.state = State::Waits;
  Fiber::suspend();
}

void Machine::misaligned(const char* what) {
  if (!on_thread_) throw Error(std::string("the host ") + what);
  misaligned_ = what;
  for (;;) Fiber::suspend();
}

std::mutex one_launch;

Machine& machine() {
  static Machine machine;
  return machine;
}

}  // namespace

void set_order(Order order, uint64_t seed) {
  machine().set_order(order, seed);
}

void run(const void* kernel, dim3 grid, dim3 block, const std::function<void()>& thread) {
  const std::lock_guard lock(one_launch);
  check_size(kernel, grid, block);
  machine().launch(grid, block, thread);
}

void meet_block(const std::source_location& where) {
  machine().wait(Wait::Block, ~0u, 0, 0, where);
}

void meet_warp(unsigned mask, const std::source_location& where) {
  machine().wait(Wait::Warp, mask, 0, lane(), where);
}

uint64_t exchange(unsigned mask, uint64_t bits, unsigned from, const std::source_location& where) {
  machine().wait(Wait::Exchange, mask, bits, from, where);
  return machine().received();
}

unsigned lane() {
  return machine().lane();
}

void misaligned(uintptr_t address, size_t bytes) {
  char text[80];
  std::snprintf(text, sizeof text, "reads or writes %zu bytes at %#zx: misaligned", bytes, size_t{address});
  machine().misaligned(text);
}

}  // namespace meshtrain::emulated

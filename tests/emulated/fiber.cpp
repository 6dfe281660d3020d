#include "tests/emulated/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cerrno>
#include <system_error>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace meshtrain::emulated {
namespace {

constexpr size_t kStack = size_t{256} << 10;  // the address sanitizer makes frames several times as large
constexpr size_t kGuard = size_t{16} << 10;   // below the stack, inaccessible

Fiber* running = nullptr;  // only one thread of the CPU at a time has fibers

// Call before a change of stacks; `frames`: kept for the stack that is left.
void leave_for([[maybe_unused]] void** frames, [[maybe_unused]] const void* stack, [[maybe_unused]] size_t size) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(frames, stack, size);
#endif
}

// Call after a change of stacks; `stack` and `size`: of the stack that was left.
void arrive([[maybe_unused]] void* frames, [[maybe_unused]] const void** stack, [[maybe_unused]] size_t* size) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(frames, stack, size);
#endif
}

// A function of its own: GCC mistakes where to go on in one that also calls __builtin_setjmp.
[[noreturn, gnu::noinline, gnu::no_sanitize_address]] void jump(void** place) {
  __builtin_longjmp(place, 1);
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  void* const memory =
      mmap(nullptr, kGuard + kStack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "a fiber's stack");
  stack_ = static_cast<char*>(memory) + kGuard;
  if (mprotect(stack_, kStack, PROT_READ | PROT_WRITE) != 0) {
    throw std::system_error(errno, std::generic_category(), "a fiber's stack");
  }
}

Fiber::~Fiber() {
  restart();
  munmap(stack_ - kGuard, kGuard + kStack);
}

void Fiber::restart() {
  started_ = false;
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStack);
#endif
}

// A context is made once; later changes are GCC's jumps: swapcontext() makes two calls of the kernel, and so does
// longjmp() under the address sanitizer, as does code that it instruments before a function that does not return.
[[gnu::no_sanitize_address]] void Fiber::resume() {
  running = this;
  leave_for(&callers_frames_, stack_, kStack);
  if (__builtin_setjmp(callers_) == 0) {
    if (started_) jump(own_);
    started_ = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack_;
    context.uc_stack.ss_size = kStack;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
    setcontext(&context);
  }
  arrive(callers_frames_, nullptr, nullptr);
  running = nullptr;
}

[[gnu::no_sanitize_address]] void Fiber::suspend() {
  Fiber* const fiber = running;
  leave_for(&fiber->own_frames_, fiber->callers_stack_, fiber->callers_size_);
  if (__builtin_setjmp(fiber->own_) == 0) jump(fiber->callers_);
  arrive(fiber->own_frames_, &fiber->callers_stack_, &fiber->callers_size_);
}

void Fiber::enter() {
  arrive(nullptr, &running->callers_stack_, &running->callers_size_);
  for (;;) {
    running->body_();
    suspend();
  }
}

}  // namespace meshtrain::emulated

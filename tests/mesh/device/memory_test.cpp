#include "mesh/device/memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>
#include <vector>

#include "mesh/base/available_memory.h"
#include "mesh/device/aten.h"
#include "mesh/device/error_message.h"

// Read by the address sanitizer, which otherwise ends the program when memory is refused.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}

namespace meshtrain {
namespace {

TEST(HostMemory, CountsTensorsWhileTheyAreThere) {
  HostMemory& memory = HostMemory::counted();
  const int64_t before = memory.live();
  memory.restart_peak();
  {
    const at::Tensor kept = at::empty({1000}, at::kFloat);
    EXPECT_EQ(memory.live() - before, 4000);
    { const at::Tensor gone = at::empty({500}, at::kDouble); }
    const at::Tensor view = kept.view({10, 100}).select(0, 3);
    EXPECT_EQ(memory.live() - before, 4000) << "a view holds nothing of its own";
    EXPECT_EQ(memory.peak() - before, 8000);
    memory.restart_peak();
    EXPECT_EQ(memory.peak() - before, 4000);
  }
  EXPECT_EQ(memory.live(), before);
  EXPECT_EQ(memory.peak() - before, 4000);
}

TEST(HostMemory, KeepsLibTorchsAlignment) {
  HostMemory::counted();
  std::vector<at::Tensor> tensors;
  for (int64_t numel = 1; numel < 200; numel += 7) {
    tensors.push_back(at::empty({numel}, at::kByte));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().data_ptr()) % 64, 0u) << numel;
  }
}

TEST(HostMemory, CountsEveryThread) {
  HostMemory& memory = HostMemory::counted();
  const int64_t before = memory.live();
  constexpr int kThreads = 4;
  std::vector<at::Tensor> kept(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&kept, i] {
      for (int times = 0; times < 1000; ++times) kept[i] = at::empty({times + 1}, at::kByte);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.live() - before, kThreads * 1000);
  kept.clear();
  EXPECT_EQ(memory.live(), before);
}

// Kernels that use raw memory: products of halves, attention, and tensors that grow in place.
TEST(HostMemory, ServesEveryKernel) {
  HostMemory& memory = HostMemory::counted();
  const int64_t before = memory.live();
  {
    const at::Tensor a = at::randn({64, 64}).to(at::kBFloat16);
    EXPECT_EQ(at::mm(a, a).numel(), 64 * 64);
    const at::Tensor q = at::randn({1, 2, 32, 16});
    EXPECT_TRUE(at::scaled_dot_product_attention(q, q, q, {}, 0, true).isfinite().all().item<bool>());
    at::Tensor grown = at::arange(10);
    grown.resize_({1000});
    EXPECT_EQ(grown[9].item<int64_t>(), 9);
  }
  EXPECT_EQ(memory.live(), before);
}

TEST(HostMemory, WhatIsRefusedIsSaidInOneMessage) {
  HostMemory& memory = HostMemory::counted();
  const int64_t before = memory.live();
  constexpr int64_t kTooMuch = int64_t{1} << 60;
  try {
    at::empty({kTooMuch}, at::kByte);
    FAIL() << "an exbibyte was given";
  } catch (const std::exception& error) {
    const std::string message = message_of(error);
    EXPECT_EQ(message.rfind("out of memory: the host refused " + std::to_string(kTooMuch + 64) + " bytes more; ", 0),
              0u)
        << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  EXPECT_EQ(memory.live(), before);
  EXPECT_EQ(message_of(std::bad_alloc()).rfind("out of memory: ", 0), 0u);
  EXPECT_EQ(message_of(std::runtime_error("anything else")), "anything else");
}

TEST(MemoryAdvice, ReplacesTheGeneralOneWhileItLives) {
  const std::string general = message_of(std::bad_alloc());
  EXPECT_NE(general.find("; a rank needs less with more ranks along cp or tp"), std::string::npos) << general;
  {
    const MemoryAdvice advice([] { return std::string("take less"); });
    EXPECT_EQ(message_of(std::bad_alloc()), "out of memory: the host gave no more; take less");
  }
  EXPECT_EQ(message_of(std::bad_alloc()), general);
  const MemoryAdvice fails([]() -> std::string { throw std::bad_alloc(); });
  EXPECT_EQ(message_of(std::bad_alloc()), general);
}

TEST(AvailableMemory, IsWhatTheSystemAndTheLimitOfTheProcessLeave) {
  EXPECT_GT(available_host_memory(), 1 << 20);
  EXPECT_LT(available_host_memory(), int64_t{1} << 60) << "no host has that much";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit limited = before;
  constexpr int64_t kLimit = int64_t{1} << 62, kAddresses = int64_t{1} << 48;  // a sanitizer maps most addresses
  limited.rlim_cur = kLimit;
  if (before.rlim_max != RLIM_INFINITY) GTEST_SKIP() << "the test has a limit already";
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limited), 0);
  const int64_t left = available_address_space();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_LT(left, kLimit) << "this process has some of it";
  EXPECT_GT(left, kLimit - kAddresses);
}

TEST(ResidentPeak, IsThatOfTheSystem) {
  const int64_t before = resident_peak();
  EXPECT_GT(before, 1 << 20);
  constexpr int64_t kMore = int64_t{256} << 20;
  at::Tensor large = at::ones({kMore}, at::kByte);
  large.fill_(2);
  const int64_t after = resident_peak();
  EXPECT_GE(after, kMore);
  rusage usage{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  constexpr int64_t kCounting = 1 << 20;  // the system adds up what its processors have counted
  EXPECT_LE(after, usage.ru_maxrss * 1024 + kCounting);
  large.reset();
  EXPECT_GE(resident_peak(), after - kCounting) << "a peak stays";
}

}  // namespace
}  // namespace meshtrain

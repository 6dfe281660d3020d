#include "runtime/run/stop_request.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

namespace meshtrain {
namespace {

bool is_blocked(int signal) {
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, nullptr, &set);
  return sigismember(&set, signal) == 1;
}

TEST(StopRequest, TakesSignalsOnAThreadThatComputesNothing) {
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) {
    ASSERT_FALSE(is_blocked(signal));
    {
      const StopRequest request;
      EXPECT_TRUE(is_blocked(signal)) << "here, in the middle of a kernel, it would be written over what that works on";
      bool inherited = false;
      std::thread([&] { inherited = is_blocked(signal); }).join();
      EXPECT_TRUE(inherited) << "by threads that are started later";
      EXPECT_FALSE(request.requested());
      ASSERT_EQ(kill(getpid(), signal), 0);
      const auto start = std::chrono::steady_clock::now();
      while (!request.requested() && std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) {
        std::this_thread::yield();
      }
      EXPECT_TRUE(request.requested());
    }
    EXPECT_FALSE(is_blocked(signal)) << "as before";
  }
}

}  // namespace
}  // namespace meshtrain

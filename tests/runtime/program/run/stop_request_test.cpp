#include "runtime/program/run/stop_request.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tests/support/load.h"

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
      EXPECT_TRUE(testing::wait_until([&] { return request.requested(); }));
    }
    EXPECT_FALSE(is_blocked(signal)) << "as before";
  }
}

TEST(StopRequest, ASignalAfterTheRunDoesNotEndTheProcess) {
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) {
    { const StopRequest request; }
    ASSERT_EQ(kill(getpid(), signal), 0);
  }
}

}  // namespace
}  // namespace meshtrain

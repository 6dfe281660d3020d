#include "runtime/program/watch/board.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace meshtrain {
namespace {

TEST(Processes, TheSignalThatEndedOneIsKnownUntilItIsCollected) {
  const pid_t process = fork();
  if (process == 0) {
    raise(SIGKILL);
    _exit(0);
  }
  ASSERT_GT(process, 0);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(is_gone(process));
  EXPECT_EQ(signal_of_end(process), SIGKILL);
  ASSERT_EQ(waitpid(process, nullptr, 0), process);
  EXPECT_EQ(signal_of_end(process), 0);
  EXPECT_EQ(signal_of_end(getpid()), 0);
}

}  // namespace
}  // namespace meshtrain

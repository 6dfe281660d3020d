#include "mesh/base/shared_value.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

namespace meshtrain::testing {
namespace {

struct Numbers {
  std::array<int, 2048> all;
};

bool is_full(const Numbers& numbers) {
  return std::all_of(numbers.all.begin(), numbers.all.end(), [&](int each) { return each == numbers.all[0]; });
}

TEST(SharedValue, IsWholeWhereverTheWriterIsStopped) {
  void* const memory =
      mmap(nullptr, sizeof(SharedValue<Numbers>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& shown = *static_cast<SharedValue<Numbers>*>(memory);
  EXPECT_EQ(shown.read().all[0], 0) << "of zeroed memory";
  const pid_t writer = fork();
  if (writer == 0) {
    Numbers numbers;
    for (int value = 1;; ++value) {
      numbers.all.fill(value);
      shown.write(numbers);
    }
  }
  for (int stop = 0; stop < 200; ++stop) {
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 37 * stop));
    kill(writer, SIGSTOP);
    int status = 0;
    waitpid(writer, &status, WUNTRACED);
    EXPECT_TRUE(is_full(shown.read())) << "stop " << stop;
    kill(writer, SIGCONT);
  }
  EXPECT_GT(shown.read().all[0], 0);
  kill(writer, SIGKILL);
  waitpid(writer, nullptr, 0);
  munmap(memory, sizeof(SharedValue<Numbers>));
}

}  // namespace
}  // namespace meshtrain::testing

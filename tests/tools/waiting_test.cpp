// A rank that waits for another one leaves the cores to ranks that compute.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/load.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Clock = std::chrono::steady_clock;

class WaitingRank : public TrainProgram {
 protected:
  int process(int rank) const { return std::stoi(content(path("process." + std::to_string(rank)))); }

  /// Returns the processor time of the process so far.
  static double seconds_of(int process) {
    const std::string stat = content("/proc/" + std::to_string(process) + "/stat");
    std::istringstream numbers(stat.substr(stat.rfind(')') + 2));
    std::string skipped;
    for (int i = 0; i < 11; ++i) numbers >> skipped;
    double user = 0, system = 0;
    numbers >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  /// Returns how often its main thread has gone to sleep.
  static int64_t sleeps_of(int process) {
    const std::string status = content("/proc/" + std::to_string(process) + "/status"),
                      key = "\nvoluntary_ctxt_switches:";
    return std::stoll(status.substr(status.find(key) + key.size()));
  }
};

TEST_F(WaitingRank, SleepsWhileAnotherIsStopped) {
  Program program(command(2, {"--mesh", "dp=2", "--set", "train.steps=1000000"},
                          "echo $$ >" + path("process").string() + ".$OMPI_COMM_WORLD_RANK"));
  wait_for_steps(2);
  kill(process(1), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double before = seconds_of(process(0));
  const int64_t sleeps_before = sleeps_of(process(0));
  const Clock::time_point stopped = Clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const double taken = seconds_of(process(0)) - before;
  const double share = taken / std::chrono::duration<double>(Clock::now() - stopped).count();
  const int64_t sleeps = sleeps_of(process(0)) - sleeps_before;
  kill(process(1), SIGCONT);
  EXPECT_LT(share, 0.15) << "of a core";
  EXPECT_GT(sleeps, 50) << "where cores are shared, who spins gets little of them too";
  program.signal(SIGUSR1);
  EXPECT_EQ(program.wait().status, 75);
}

}  // namespace
}  // namespace meshtrain::testing

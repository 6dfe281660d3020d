// Four ranks on two hosts (tests/support/two_hosts) whose network is slow, loses packets, is not the only one, or
// forbids connections, and a host that is stopped: losses are those of a good network, and no host is called dead.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/full_run.h"
#include "tests/support/load.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Clock = std::chrono::steady_clock;

class Links : public TrainProgram {
 protected:
  /// Returns the command "train" on hosts that `hosts` describes to tests/support/two_hosts. A host counts as lost
  /// after `silence_limit` seconds without an answer. Each rank leaves its process in `process.RANK`, and rank 0 what
  /// became of its host's packets in `packets`.
  Words on_hosts(const Words& hosts, const Words& arguments, int silence_limit = 3) const {
    Words words = {source_folder() + "/tests/support/two_hosts"};
    words.insert(words.end(), hosts.begin(), hosts.end());
    const std::string leave = "\"$0\" \"$@\" &\necho $! >" + path("process").string() +
                              ".$OMPI_COMM_WORLD_RANK\nwait $!\nstatus=$?\n"
                              "[ $OMPI_COMM_WORLD_RANK != 0 ] || tc -s qdisc show dev $(hostname) >" +
                              path("packets").string() + "\nexit $status";
    words.insert(words.end(),
                 {"/usr/bin/env", "MESHTRAIN_SILENCE_LIMIT=" + std::to_string(silence_limit), "/bin/sh", "-c", leave,
                  build_folder() + "/meshtrain", "train", recipe, "--run-dir", run_dir, "--mesh", "dp=4"});
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }

  std::vector<double> losses() const {
    std::vector<double> losses;
    for (const auto& step : metrics()) losses.push_back(step.at("loss"));
    return losses;
  }
  /// Returns how many packets of rank 0's host the system counted as this: "(dropped ", "overlimits " (held back).
  int packets(const std::string& counted) const {
    const std::string text = content(path("packets"));
    EXPECT_TRUE(has(text, counted)) << text;
    return has(text, counted) ? std::stoi(text.substr(text.find(counted) + counted.size())) : 0;
  }

  /// Returns the lines of meshtrain on stderr.
  static Words told(const Ending& ending) {
    Words found;
    std::istringstream lines(ending.err);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("meshtrain: ", 0) == 0) found.push_back(line.substr(11));
    }
    return found;
  }

  /// Waits for the second step. Returns false when two hosts cannot be made.
  bool starts(const Program& program) const {
    EXPECT_TRUE(wait_until([&] { return metrics().size() >= 2 || program.has_ended(); }));
    return !program.has_ended();
  }
  int process(int rank) const { return std::stoi(content(path("process." + std::to_string(rank)))); }

  /// Expects the same losses over a link of this kind as over a good one, and no word about hosts.
  void expect_same_over(const std::string& link, const std::string& steps) {
    const Words arguments = {"--set", "train.steps=" + steps, "--set", "train.time_limit=0"};
    const Ending good = run_program(on_hosts({}, arguments));
    if (good.status == 77) GTEST_SKIP() << good.err;
    ASSERT_EQ(good.status, 0) << good.err;
    good_losses_ = losses();
    ASSERT_EQ(good_losses_.size(), std::stoul(steps));
    run_dir = path("over the link");
    const Ending ending = run_program(on_hosts({"--link", link}, arguments));
    if (ending.status == 77) GTEST_SKIP() << ending.err;
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(told(ending), Words{});
    EXPECT_EQ(losses(), good_losses_);
  }

  std::vector<double> good_losses_;
};

TEST_F(Links, ASlowOneIsWaitedFor) {
  const bool full = is_full_run();
  expect_same_over(full ? "tbf rate 300kbit burst 10kb latency 2s" : "tbf rate 1mbit burst 10kb latency 1s",
                   full ? "40" : "4");
  if (IsSkipped() || HasFailure()) return;
  EXPECT_GT(packets("overlimits "), 0) << "the link is slow";
}

// A queue that is full drops what comes.
TEST_F(Links, OneThatLosesPacketsChangesNothing) {
  expect_same_over("tbf rate 10mbit burst 5kb limit 6kb", is_full_run() ? "400" : "8");
  if (IsSkipped() || HasFailure()) return;
  EXPECT_GT(packets("(dropped "), 0);
}

// The watch's connection, which has the only port that MPI's settings do not name.
class Firewalls : public Links, public ::testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(Firewalls, HostsThatCannotWatchEachOtherTrainAndSaySo) {
  const auto& [how, seconds] = GetParam();
  const Ending ending = run_program(on_hosts(
      {"--firewall", how}, {"--set", "train.steps=1000000", "--set", std::string("train.time_limit=") + seconds}));
  if (ending.status == 77) GTEST_SKIP() << ending.err;
  EXPECT_EQ(ending.status, 75) << ending.err;
  Words lines = told(ending);
  std::erase_if(lines, [](const std::string& line) { return has(line, " holds up "); });  // a busy disk
  ASSERT_EQ(lines.size(), 1u) << ending.err;
  EXPECT_EQ(lines[0].rfind("warning: rank 2 on mtb", 0), 0u) << lines[0];
  EXPECT_TRUE(has(lines[0], " cannot reach rank 0 over TCP (tried 10.77.0.1")) << lines[0];
  EXPECT_TRUE(has(lines[0], "): if this host is lost, nothing will report it")) << lines[0];
  expect_steps(metrics(), metrics().size());
}

INSTANTIATE_TEST_SUITE_P(Links, Firewalls, ::testing::Values(std::pair("prohibit", "6"), std::pair("blackhole", "13")),
                         [](const auto& tested) { return std::string(tested.param.first); });

// Networks of container engines have one address on every host.
TEST_F(Links, OthersWithTheSameAddressesOnEachHostAreNotTakenForTheNetwork) {
  Program program(on_hosts({"--networks", "2"}, {"--set", "train.steps=1000000"}));
  if (!starts(program)) GTEST_SKIP() << program.wait().err;
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  kill(process(2), SIGKILL);
  kill(process(3), SIGKILL);
  const Ending ending = program.wait();
  ASSERT_EQ(told(ending).size(), 1u) << ending.err;
  EXPECT_TRUE(has(told(ending)[0], "rank 2 (dp=2 cp=0 tp=0) on host mtb")) << ending.err;
  EXPECT_TRUE(has(told(ending)[0], ", and rank 3 there, ended without a message")) << ending.err;
}

TEST_F(Links, AHostThatIsStoppedGoesOn) {
  const int stop_for = is_full_run() ? 60 : 5;  // the limit is 3
  {
    Program program(on_hosts({}, {"--set", "train.steps=1000000"}));
    if (!starts(program)) GTEST_SKIP() << program.wait().err;
    for (const int rank : {2, 3}) kill(process(rank), SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const size_t before = metrics().size();
    std::this_thread::sleep_for(std::chrono::seconds(stop_for - 1));
    EXPECT_EQ(metrics().size(), before) << "the others wait";
    for (const int rank : {2, 3}) kill(process(rank), SIGCONT);
    wait_for_steps(before + 2);
    kill(process(0), SIGUSR1);
    const Ending ending = program.wait();
    EXPECT_EQ(ending.status, 75) << ending.err;
    const Words lines = told(ending);
    EXPECT_TRUE(std::ranges::none_of(lines, [](const std::string& line) {
      return has(line, "is gone") || has(line, "has not answered");
    })) << ending.err;
  }
  const std::vector<double> stopped = losses();
  expect_steps(metrics(), stopped.size());
  run_dir = path("not stopped");
  EXPECT_EQ(run_program(on_hosts({}, {"--set", "train.steps=" + std::to_string(stopped.size())})).status, 0);
  const std::vector<double> reference = losses();
  const size_t common = std::min(stopped.size(), reference.size());
  ASSERT_GT(common, 4u);
  EXPECT_TRUE(std::equal(reference.begin(), reference.begin() + static_cast<std::ptrdiff_t>(common), stopped.begin()));
}

}  // namespace
}  // namespace meshtrain::testing

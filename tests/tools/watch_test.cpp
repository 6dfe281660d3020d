// A rank or a host vanishes without a message: another rank reports which one, and what it was doing.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <regex>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/full_run.h"
#include "tests/support/load.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Clock = std::chrono::steady_clock;

class WatchedRanks : public TrainProgram {
 protected:
  /// Makes a call of a rank end the rank (tests/support/faults).
  static std::string kill_at(int rank, const std::string& call) {
    return "[ $OMPI_COMM_WORLD_RANK != " + std::to_string(rank) + " ] || export LD_PRELOAD=" + build_folder() +
           "/tests/libfaults.so MESHTRAIN_FAULTS='" + call + "'";
  }

  /// Runs any command of meshtrain on two ranks; a shell that runs `prologue` first starts each rank.
  static Ending on_two_ranks(const Words& arguments, const std::string& prologue) {
    Words words = {source_folder() + "/tools/ranks", "2", "/bin/sh", "-c", prologue + "\nexec \"$0\" \"$@\""};
    words.push_back(build_folder() + "/meshtrain");
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_program(words);
  }

  static constexpr const char* kLast =
      R"((; the last collective seen of it was \w+ of \[[\d, ]*\] \w+( for [\w. ]+)?, number \d+ of group \w+)?)";

  static void expect_told(const Ending& ending, const std::string& rank, const std::string& phase) {
    EXPECT_NE(ending.status, 0);
    const std::string message = complaint(ending, ending.status);
    EXPECT_TRUE(std::regex_match(
        message, std::regex(rank + " ended without a message: it was killed, perhaps for lack of memory; it was in " +
                            phase + kLast)))
        << message;
  }
};

/// Matches every phase of a step.
const std::string kPart = R"((step .*|the reading of step \d+'s samples))";
const std::string kRank0 = R"(rank 0 \(dp=0 cp=0 tp=0\))", kRank1 = R"(rank 1 \(dp=1 cp=0 tp=0\))";

TEST_F(WatchedRanks, InTheSetUp) {
  expect_told(train(2, {"--mesh", "dp=2"}, kill_at(1, "open:tokens.bin:KILL")), kRank1, "the set-up");
}

TEST_F(WatchedRanks, WhileItResumes) {
  ASSERT_EQ(train(2, {"--mesh", "dp=2", "--set", "checkpoint.every=4"}).status, 0);
  expect_told(train(2, {"--mesh", "dp=2", "--resume"}, kill_at(1, "open:step-00000004/rank-00001:KILL")), kRank1,
              "the resume from a checkpoint");
  const Ending ending = train(2, {"--mesh", "dp=2", "--resume"});
  EXPECT_EQ(ending.status, 0) << ending.err;
}

TEST_F(WatchedRanks, WhileItExports) {
  const std::string weights = path("weights");
  expect_told(train(2, {"--mesh", "dp=2", "--set", "train.export=" + weights}, kill_at(0, "pwrite:weights:KILL")),
              kRank0, "the export to " + weights);
}

TEST_F(WatchedRanks, WhileItVerifies) {
  expect_told(on_two_ranks({"verify", recipe, "--mesh", "dp=2"}, kill_at(1, "open:tokens.bin:KILL")), kRank1,
              "the comparison for " + recipe.string());
}

TEST_F(WatchedRanks, WhileItGenerates) {
  ASSERT_EQ(train(2, {"--mesh", "dp=2", "--set", "checkpoint.every=4"}).status, 0);
  expect_told(on_two_ranks({"generate", run_dir, "--tokens", "1,2,3", "--max-tokens", "4"},
                           kill_at(1, "open:step-00000004/rank-00001:KILL")),
              R"(rank 1 \(dp=0 cp=0 tp=1\))", "the reading of .*");
}

TEST_F(WatchedRanks, WhileItCleansUpAfterAFailureOfAll) {
  const Ending ending =
      train(2, {"--mesh", "dp=2", "--set", "checkpoint.every=1", "--set", "optimizer.learning_rate=1e38"},
            kill_at(0, "pwrite:step-00000001.*.tmp/:delay=2000:0:1;fsync:step-00000001.*.tmp/:KILL"));
  EXPECT_NE(ending.status, 0);
  EXPECT_EQ(count(ending.err, "meshtrain: step 2: loss "), 1) << ending.err;
  EXPECT_EQ(count(ending.err,
                  "meshtrain: "
                  "rank 0 (dp=0 cp=0 tp=0) ended without a message"),
            1)
      << ending.err;
}

/// Ranks on two hosts (tests/support/two_hosts), in most tests two on each.
class WatchedHosts : public WatchedRanks {
 protected:
  /// Starts `meshtrain train` and waits for its second step. Returns false when two hosts cannot be made.
  bool start(const Words& arguments = {}, int ranks_of_host = 2) {
    num_ranks_ = 2 * ranks_of_host;
    std::filesystem::remove_all(run_dir);
    std::filesystem::remove(path("host.0"));
    const std::string each = std::to_string(ranks_of_host), all = std::to_string(num_ranks_);
    const std::string prologue = "echo $$ >" + path("process").string() + ".$OMPI_COMM_WORLD_RANK; hostname >" +
                                 path("host").string() + ".$OMPI_COMM_WORLD_RANK; exec 2>" + path("err").string() +
                                 ".$OMPI_COMM_WORLD_RANK; export MESHTRAIN_SILENCE_LIMIT=3";
    Words words = {source_folder() + "/tests/support/two_hosts",
                   "--ranks",
                   each + "," + each,
                   "/bin/sh",
                   "-c",
                   prologue + "\nexec \"$0\" \"$@\""};
    words.insert(words.end(), {build_folder() + "/meshtrain", "train", recipe, "--run-dir", run_dir, "--mesh",
                               "dp=" + all, "--set", "train.global_batch=8"});
    words.insert(words.end(), arguments.begin(), arguments.end());
    program_.emplace(words);
    EXPECT_TRUE(wait_until([&] { return metrics().size() >= 2 || program_->has_ended(); }));
    return metrics().size() >= 2;
  }
  Ending wait() { return program_->wait(); }

  std::string host_of(int rank) const {
    std::string name = content(path("host." + std::to_string(rank)));
    return name.substr(0, name.find('\n'));
  }
  void kill_rank(int rank) const { kill(std::stoi(content(path("process." + std::to_string(rank)))), SIGKILL); }
  /// Returns the process of the launcher on the rank's host.
  int parent_of(int rank) const {
    const std::string stat =
        content("/proc/" + std::to_string(std::stoi(content(path("process." + std::to_string(rank))))) + "/stat");
    return std::stoi(stat.substr(stat.rfind(')') + 4));
  }
  /// Returns the lines that a rank printed.
  std::vector<std::string> told_by(int rank) const {
    std::vector<std::string> found;
    std::istringstream lines(content(path("err." + std::to_string(rank))));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("meshtrain: ") && !has(line, kSlowRank)) found.push_back(line.substr(11));
    }
    return found;
  }
  std::vector<std::string> told() const {
    std::vector<std::string> found;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      for (const std::string& line : told_by(rank)) found.push_back(line);
    }
    return found;
  }
  bool is_alive(int rank) const {
    const std::string stat = content("/proc/" +
                                     content(path("process." + std::to_string(rank)))
                                         .erase(content(path("process." + std::to_string(rank))).find('\n')) +
                                     "/stat");
    return !stat.empty() && stat.at(stat.rfind(')') + 2) != 'Z';
  }

  /// Returns how many ranks of a host are tried.
  static std::vector<int> sizes_of_host() { return is_full_run() ? std::vector{1, 2, 4} : std::vector{2}; }

 private:
  int num_ranks_ = 4;
  std::optional<Program> program_;
};

TEST_F(WatchedHosts, AllRanksOfAHostAreKilled) {
  for (const int size : sizes_of_host()) {
    SCOPED_TRACE(size);
    if (!start(kForever, size)) GTEST_SKIP() << wait().err;
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const Clock::time_point killed = Clock::now();
    for (int rank = size; rank < 2 * size; ++rank) kill_rank(rank);
    const Ending ending = wait();
    EXPECT_LT(Clock::now() - killed, within(std::chrono::seconds(15)));
    ASSERT_EQ(told().size(), 1u) << ending.err;
    const std::string first = std::to_string(size);
    const std::string others = size == 1 ? "" : size == 2 ? ", and rank 3 there," : ", and ranks 5-7 there,";
    EXPECT_TRUE(std::regex_match(
        told()[0], std::regex("rank " + first + R"( \(dp=)" + first + R"( cp=0 tp=0\) on host )" + host_of(size) +
                              others + " ended without a message: .*; it was in " + kPart +
                              "; the last collective seen of it was .*, "
                              R"(number \d+ of group \w+; the job ends .*)")))
        << told()[0];
    const nlohmann::json failed = lines(run_dir / "events.jsonl").back();
    EXPECT_EQ(failed.at("event"), "rank_failed") << failed;
    EXPECT_EQ(failed.at("cause"), "killed") << failed;
    EXPECT_EQ(failed.at("rank"), size) << failed;
    EXPECT_EQ(failed.at("host"), host_of(size)) << failed;
    EXPECT_EQ(failed.at("message"), told()[0]);
  }
}

/// The launcher ends ranks one after the other, as slowly as a launcher may: after one rank has reported why the job
/// ends, no rank reports the ended ranks as lost.
TEST_F(WatchedHosts, NothingIsToldAfterTheFirstReason) {
  if (!start(kForever)) GTEST_SKIP() << wait().err;
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const int launcher = parent_of(0);
  ASSERT_EQ(kill(launcher, SIGSTOP), 0);
  kill_rank(1);
  wait_until([&] { return !told().empty(); }, std::chrono::seconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  kill_rank(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  kill(launcher, SIGCONT);
  const Ending ending = wait();
  EXPECT_NE(ending.status, 0);
  ASSERT_EQ(told().size(), 1u) << told().back();
  EXPECT_EQ(told()[0].rfind("rank 1 (dp=1 cp=0 tp=0) ended without a message", 0), 0u) << told()[0];
}

TEST_F(WatchedHosts, ACableIsPulled) {
  for (const int size : sizes_of_host()) {
    SCOPED_TRACE(size);
    // A warning of ranks that stand still would come after the report about the host, and before the end.
    if (!start({"--set", "train.steps=1000000", "--set", "parallel.stall_warning=7"}, size)) {
      GTEST_SKIP() << wait().err;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const Clock::time_point pulled = Clock::now();
    const std::string host = host_of(size);
    ASSERT_EQ(std::system(("ip -n " + host + " link set " + host + " down").c_str()), 0);
    const auto any_alive = [&] {
      for (int rank = 0; rank < 2 * size; ++rank) {
        if (is_alive(rank)) return true;
      }
      return false;
    };
    while (told().size() < 2 && any_alive() && Clock::now() - pulled < within(std::chrono::seconds(15))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_LT(Clock::now() - pulled, within(std::chrono::seconds(15))) << "both hosts are named";
    while (any_alive() && Clock::now() - pulled < within(std::chrono::seconds(25))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_FALSE(any_alive());
    EXPECT_GE(Clock::now() - pulled, std::chrono::seconds(2));
    // mpirun itself waits for its other half as long as TCP does.
    ASSERT_EQ(std::system(("ip -n " + host + " link set " + host + " up").c_str()), 0);
    const Ending ending = wait();
    EXPECT_NE(ending.status, 0);
    const nlohmann::json failed = lines(run_dir / "events.jsonl").back();
    EXPECT_EQ(failed.at("event"), "rank_failed") << failed;
    EXPECT_EQ(failed.at("cause"), "network") << failed;
    const auto silent = [&](int rank) {
      const std::string first = std::to_string(rank), last = std::to_string(rank + size - 1);
      return std::regex("host " + host_of(rank) + R"( \()" +
                        (size == 1 ? "rank " + first : "ranks " + first + "-" + last) +
                        R"(\) has not answered for 3 s: its power or its network has failed; rank )" + first +
                        R"( \(dp=. cp=0 tp=0\) was in )" + kPart + "; the last collective seen of it was .*");
    };
    ASSERT_EQ(told_by(0).size(), 1u) << ending.err;
    EXPECT_TRUE(std::regex_match(told_by(0)[0], silent(size))) << told_by(0)[0];
    ASSERT_EQ(told_by(size).size(), 1u) << ending.err;
    EXPECT_TRUE(std::regex_match(told_by(size)[0], silent(0))) << told_by(size)[0];
    EXPECT_EQ(told().size(), 2u);
  }
}

TEST_F(WatchedHosts, ARankThatIsStoppedIsNotCalledDead) {
  if (!start(kForever)) GTEST_SKIP() << wait().err;
  const int process = std::stoi(content(path("process.2")));
  kill(process, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(5));  // the limit is 3
  kill(process, SIGCONT);
  wait_for_steps(metrics().size() + 2);
  kill(std::stoi(content(path("process.0"))), SIGUSR1);
  const Ending ending = wait();
  EXPECT_EQ(ending.status, 75) << ending.err;
  EXPECT_TRUE(told().empty()) << ending.err;
}

TEST_F(WatchedHosts, AStoppedRankIsNamedOnEveryHost) {
  if (!start({"--set", "train.steps=1000000", "--set", "parallel.stall_warning=2"})) GTEST_SKIP() << wait().err;
  const auto steps_on = [&] {
    wait_for_steps(metrics().size() + 5);
    std::this_thread::sleep_for(std::chrono::seconds(3));
  };
  for (const int rank : is_full_run() ? std::vector<int>{3, 2, 1, 0} : std::vector<int>{3, 0}) {
    steps_on();
    const int process = std::stoi(content(path("process." + std::to_string(rank))));
    const std::string name =
        "warning: rank " + std::to_string(rank) + " (dp=" + std::to_string(rank) + " cp=0 tp=0) on " + host_of(rank);
    const auto times_named = [&] {
      const std::vector<std::string> lines = told();
      return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
        return line.starts_with(name + " holds up ") && line.find(": its process ") != std::string::npos;
      });
    };
    const int expected = rank == 0 ? 2 : 1;  // each host speaks for itself when rank 0 is silent
    kill(process, SIGSTOP);
    wait_until([&] { return times_named() >= expected; });  // where steps have paused for long, it takes longer
    kill(process, SIGCONT);
    steps_on();
    const std::vector<std::string> lines = told();
    EXPECT_EQ(times_named(), expected) << "rank " << rank << ", of\n" << ::testing::PrintToString(lines);
    for (const std::string& line : lines) {
      EXPECT_TRUE(line.starts_with("warning: the ranks continue") || line.find(" holds up ") != std::string::npos)
          << line;
    }
  }
  kill(std::stoi(content(path("process.0"))), SIGUSR1);
  EXPECT_EQ(wait().status, 75);
}

TEST_F(WatchedHosts, ACleanEndIsNotCalledADeath) {
  if (!start()) GTEST_SKIP() << wait().err;
  const Ending ending = wait();
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(told().empty()) << ending.err;
}

}  // namespace
}  // namespace meshtrain::testing

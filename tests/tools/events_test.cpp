// A run keeps its events as values, which diagnose and report read: their verdict is that of the console.
#include <csignal>
#include <map>

#include "tests/tools/stand_still.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;

class RunEventsProgram : public StandStill {
 protected:
  std::vector<json> events() const { return lines(run_dir / "events.jsonl"); }

  /// Returns the names of the events, in their order, without stalls: a busy machine has some of its own.
  Words names() const {
    Words found;
    for (const json& event : events()) {
      const std::string name = event.at("event");
      if (!name.starts_with("stall")) found.push_back(name);
    }
    return found;
  }

  /// Returns the last event of a name; null when there is none.
  json last(const std::string& name) const {
    json found;
    for (const json& event : events()) {
      if (event.at("event") == name) found = event;
    }
    return found;
  }

  /// Returns the last line that the program printed about itself, without "meshtrain: ".
  static std::string last_line(const Ending& ending) {
    const std::string begin = "meshtrain: ";
    const size_t at = ending.err.rfind(begin);
    if (at == std::string::npos) return "";
    return ending.err.substr(at + begin.size(), ending.err.find('\n', at) - at - begin.size());
  }

  /// Expects that diagnose ends with the verdict that the console had.
  void expect_diagnosed(const std::string& verdict) const {
    ASSERT_NE(verdict, "");
    const Ending diagnosed = run_meshtrain({"diagnose", run_dir.string()});
    EXPECT_EQ(diagnosed.status, 0) << diagnosed.err;
    EXPECT_TRUE(("\n" + diagnosed.out).ends_with("\n" + verdict + "\n")) << diagnosed.out << "\nis not\n" << verdict;
  }
};

TEST_F(RunEventsProgram, ARankThatIsKilledIsDiagnosedAsTheConsoleSaid) {
  for (const int rank : {1, 0}) {
    SCOPED_TRACE(rank);
    std::filesystem::remove_all(run_dir);
    Program program(endless(2, "dp=2"));
    wait_for_steps(10);
    kill(process_of(rank), SIGKILL);
    const Ending ending = program.wait();
    EXPECT_NE(ending.status, 0);
    const std::string verdict = last_line(ending);
    EXPECT_TRUE(has(verdict, " ended without a message")) << ending.err;
    const json failed = last("rank_failed");
    ASSERT_TRUE(failed.is_object());
    EXPECT_EQ(failed.at("rank"), rank);
    EXPECT_EQ(failed.at("cause"), "killed");
    EXPECT_EQ(failed.at("coordinate"), json({{"dp", rank}, {"cp", 0}, {"tp", 0}}));
    EXPECT_EQ(failed.at("message"), verdict);
    EXPECT_GE(failed.at("step"), 10);
    EXPECT_TRUE(failed.at("phase").at("kind") == "step" || failed.at("phase").at("kind") == "reading") << failed;
    expect_diagnosed(verdict);
    const Ending report = run_meshtrain({"report", run_dir.string()});
    EXPECT_TRUE(has(report.out, "failed: rank " + std::to_string(rank) + ", killed, in step ")) << report.out;
  }
}

TEST_F(RunEventsProgram, AStoppedRankIsDiagnosedAsTheConsoleSaid) {
  Program program(endless(2, "dp=2", {"parallel.timeout=10"}));
  wait_for_steps(10);
  ASSERT_GE(metrics().size(), 10u);
  kill(process_of(1), SIGSTOP);
  const Ending ending = program.wait();
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_EQ(names(), Words({"started", "rank_failed"}));
  EXPECT_EQ(last("stalled").at("cause"), "stopped");
  EXPECT_EQ(last("rank_failed").at("cause"), "stopped");
  EXPECT_EQ(last("rank_failed").at("rank"), 1);
  EXPECT_TRUE(has(last_line(ending), "its process is stopped, by a signal or a debugger")) << ending.err;
  expect_diagnosed(last_line(ending));
}

TEST_F(RunEventsProgram, ARunThatIsStoppedAndResumedSaysSo) {
  Program program(endless(2, "dp=2", {"train.name_is_not_a_key=0"}));
  program.wait();
  EXPECT_FALSE(std::filesystem::exists(run_dir / "events.jsonl")) << "a run that is refused leaves nothing";

  Program endless_run(endless(2, "dp=2", {"checkpoint.every=1000000"}));
  wait_for_steps(5);
  endless_run.signal(SIGUSR1);
  EXPECT_EQ(endless_run.wait().status, 75);
  EXPECT_EQ(names(), Words({"started", "checkpoint", "stopped"}));
  const json stopped = last("stopped");
  const auto step = stopped.at("step").get<int64_t>();
  EXPECT_EQ(step, static_cast<int64_t>(metrics().size()));
  EXPECT_EQ(stopped.at("why"), "signal");
  EXPECT_EQ(stopped.at("signal"), "SIGUSR1");
  EXPECT_EQ(last("checkpoint").at("step"), step);
  EXPECT_TRUE(std::filesystem::exists(run_dir / last("checkpoint").at("folder").get<std::string>() / "manifest.json"));

  const std::string steps = "train.steps=" + std::to_string(step + 4);
  ASSERT_EQ(train(2, {"--mesh", "tp=2", "--resume", "--set", steps}).status, 0);
  EXPECT_EQ(names(), Words({"started", "checkpoint", "stopped", "started", "resumed", "done"})) << "resume appends";
  EXPECT_EQ(last("started").at("mesh"), json({{"dp", 1}, {"cp", 1}, {"tp", 2}}));
  EXPECT_EQ(last("started").at("ranks"), 2);
  EXPECT_EQ(last("started").at("hosts").size(), 1u);
  EXPECT_EQ(last("started").at("step"), step);
  EXPECT_EQ(last("resumed").at("step"), step);
  EXPECT_EQ(last("resumed").at("folder"), last("checkpoint").at("folder"));
  EXPECT_EQ(last("done").at("step"), step + 4);
  const Ending diagnosed = run_meshtrain({"diagnose", run_dir.string()});
  EXPECT_EQ(diagnosed.status, 0) << diagnosed.err;
  EXPECT_TRUE(has(diagnosed.out, " is complete: all steps are done")) << diagnosed.out;
  EXPECT_TRUE(has(run_meshtrain({"report", run_dir.string()}).out, ": meshes dp=2,cp=1,tp=1 (steps 1 to "));
}

TEST_F(RunEventsProgram, AnErrorIsKeptWithItsRankAndPhase) {
  const std::string fault = "[ ${OMPI_COMM_WORLD_RANK:-0} != 1 ] || export LD_PRELOAD=" + build_folder() +
                            "/tests/libfaults.so MESHTRAIN_FAULTS='pread:tokens.bin:EIO:4'\n";
  const Ending ending = train(2, {"--mesh", "dp=2"}, fault);
  EXPECT_EQ(ending.status, 1) << ending.err;
  const json failed = last("rank_failed");
  ASSERT_TRUE(failed.is_object()) << ending.err;
  EXPECT_EQ(failed.at("cause"), "exception");
  EXPECT_EQ(failed.at("rank"), 1) << failed;
  EXPECT_EQ(failed.at("phase").at("kind"), "reading") << failed;
  EXPECT_GE(failed.at("step"), 1);
  expect_diagnosed(failed.at("message"));
  EXPECT_EQ(failed.at("message"), last_line(ending));

  std::filesystem::remove_all(run_dir);
  const Ending all = train(2, {"--mesh", "dp=2", "--set", "optimizer.learning_rate=1e38"});
  EXPECT_EQ(all.status, 1) << all.err;
  EXPECT_TRUE(last("rank_failed").at("rank").is_null()) << "all ranks found the same";
  EXPECT_EQ(last("rank_failed").at("step"), 2);
  expect_diagnosed(last_line(all));
}

// A rank that dies before the first step leaves no other event.
TEST_F(RunEventsProgram, ARankThatIsKilledWhileItResumes) {
  ASSERT_EQ(train(2, {"--mesh", "dp=2", "--set", "checkpoint.every=4"}).status, 0);
  const std::string fault = "[ $OMPI_COMM_WORLD_RANK != 1 ] || export LD_PRELOAD=" + build_folder() +
                            "/tests/libfaults.so MESHTRAIN_FAULTS='open:step-00000004/rank-00001:KILL'\n";
  const Ending ending = train(2, {"--mesh", "dp=2", "--resume", "--set", "train.steps=8"}, fault);
  EXPECT_NE(ending.status, 0);
  EXPECT_EQ(names(), Words({"started", "checkpoint", "done", "rank_failed"}));
  EXPECT_EQ(last("rank_failed").at("phase").at("kind"), "resume");
  expect_diagnosed(last_line(ending));
}

}  // namespace
}  // namespace meshtrain::testing

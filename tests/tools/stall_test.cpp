// Ranks stand still: who holds them up is named, and after the limit the run ends with its flight records.
#include <chrono>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "tests/support/full_run.h"
#include "tests/support/load.h"
#include "tests/tools/stand_still.h"

namespace meshtrain::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(StandStill, AStoppedRankIsNamedAndTheOthersGoOn) {
  for (int rank = 0; rank < 2; ++rank) {
    std::filesystem::remove_all(run_dir);
    Program program(endless(2, rank == 0 ? "tp=2" : "dp=2"));
    wait_for_steps(20);
    const int process = process_of(rank);
    kill(process, SIGSTOP);
    wait_until([&] { return has(content(run_dir / "console.log"), " holds up "); });
    kill(process, SIGCONT);
    const size_t steps = metrics().size();
    wait_for_steps(steps + 20);
    program.signal(SIGUSR1);
    const Ending ending = program.wait();
    EXPECT_EQ(ending.status, 75) << ending.err;
    const Words warnings = warnings_of(ending);
    ASSERT_GE(warnings.size(), 1) << ending.err;
    expect_match(warnings[0], "^" + name_of_rank(rank) +
                                  R"( holds up 1 rank, for \d+ s in .*, number \d+ of group \w+: )" +
                                  R"(its process is stopped, by a signal or a debugger; it was in [^;]*step \d+[^;]*; )"
                                  "its last collective was .*, number ");
    for (size_t i = 1; i < warnings.size(); ++i)
      EXPECT_TRUE(warnings[i].starts_with("the ranks continue")) << ending.err;
  }
}

TEST_F(StandStill, AfterTheLimitTheRunEndsWithFlightRecords) {
  Program program(endless(4, "dp=2,tp=2", {"parallel.timeout=3"}));
  wait_for_steps(20);
  kill(process_of(2), SIGSTOP);
  const Ending ending = program.wait();
  EXPECT_EQ(ending.status, 1) << ending.err;
  expect_match(ending.err, "meshtrain: " + name_of_rank(2) +
                               R"( holds up 3 ranks, .* is stopped, .*; the run ends after parallel.timeout, 3 s\n)");
  for (const int rank : {0, 1, 3}) {
    const std::filesystem::path file = run_dir / "flight" / ("rank-0000" + std::to_string(rank) + ".jsonl");
    EXPECT_TRUE(std::filesystem::exists(file)) << file;
    EXPECT_GT(lines(file).size(), 50);
  }
  const Ending diagnosed = run_meshtrain({"diagnose", run_dir.string()});
  EXPECT_EQ(diagnosed.status, 0) << diagnosed.err;
  expect_match(diagnosed.out, "\n" + name_of_rank(2) + " holds up 3 ranks, for . s in .*: its process is stopped");
  expect_match(diagnosed.out,
               R"(rank 0 \(dp=0 cp=0 tp=0\) on \S+\n  in    step \d+, .*\n  state waits in number \d+ of group \w+)");
}

TEST_F(StandStill, FlightRecordsOfAPipelineHaveLinksWithBothEnds) {
  Program program(endless(2, "pp=2", {"parallel.timeout=3", "model.num_hidden_layers=2"}));
  wait_for_steps(20);
  kill(process_of(1), SIGSTOP);
  EXPECT_EQ(program.wait().status, 1);
  std::set<std::string> links;
  for (const nlohmann::json& line : lines(run_dir / "flight/rank-00000.jsonl")) {
    if (line.value("link", false)) links.insert(line.at("name").get<std::string>() + line.at("ranks").dump());
  }
  EXPECT_EQ(links, (std::set<std::string>{"pp 0>1[0,1]", "pp 1>0[1,0]"}));
  std::filesystem::remove(run_dir / "events.jsonl");  // which has the line of the console
  const Ending diagnosed = run_meshtrain({"diagnose", run_dir.string()});
  EXPECT_EQ(diagnosed.status, 0) << diagnosed.err;
  expect_match(diagnosed.out, R"(\nrank 1 .*holds up 1 rank, for . s in .*, number \d+ of )" + kGroupOrLink + ": ");
  expect_match(diagnosed.out, R"(\n  state waits in number \d+ of )" + kGroupOrLink + ", unchanged for ");
}

TEST_F(StandStill, AStopIsObeyedWhileARankIsStuck) {
  Program program(endless(2, "dp=2", {"checkpoint.every=5"}));
  wait_until([&] { return std::filesystem::exists(run_dir / "checkpoints" / "step-00000010"); });
  kill(process_of(1), SIGSTOP);
  std::this_thread::sleep_for(milliseconds(200));
  kill(process_of(0), SIGUSR1);
  const Ending ending = program.wait();
  EXPECT_EQ(ending.status, 1) << ending.err;
  expect_match(
      ending.err,
      R"(meshtrain: a stop was requested, but no checkpoint can be written \(the last is that of step \d+\): )" +
          name_of_rank(1) + " holds up");
}

TEST_F(StandStill, ARankThatReadsAndOneThatSavesAreNamed) {
  const Ending reading =
      run_program(command(2, {"--mesh", "dp=2", "--set", "train.steps=6", "--set", "parallel.stall_warning=1"},
                          delay(1, "pread:tokens.bin:delay=4000:4:1")));
  EXPECT_EQ(reading.status, 0) << reading.err;
  ASSERT_GE(warnings_of(reading).size(), 1) << reading.err;
  expect_match(warnings_of(reading)[0],
               "^" + name_of_rank(1) + " holds up 1 rank, .*: it reads data; it was in the reading of step ");
  std::filesystem::remove_all(run_dir);
  const Ending saving = run_program(command(
      2,
      {"--mesh", "dp=2", "--set", "train.steps=6", "--set", "checkpoint.every=2", "--set", "parallel.stall_warning=1"},
      delay(1, "fsync:rank-00001:delay=4000:0:1")));
  EXPECT_EQ(saving.status, 0) << saving.err;
  ASSERT_GE(warnings_of(saving).size(), 1) << saving.err;
  expect_match(warnings_of(saving)[0],
               "^" + name_of_rank(1) + " holds up 1 rank, .*: it writes a checkpoint; it was in the checkpoint ");
}

TEST_F(StandStill, FlightsAreWrittenOnRequestWhileTheRunGoesOn) {
  // Products of this size are computed by kernels whose data a signal frame on their thread would overwrite.
  Program program(endless(2, "tp=2", {"model.hidden_size=256", "model.intermediate_size=512"}));
  wait_for_steps(5);
  const auto file = [&](int rank) { return run_dir / "flight" / ("rank-0000" + std::to_string(rank) + ".jsonl"); };
  int requests = 0;  // a rank whose disk is busy answers a later one
  wait_until([&] {
    for (int rank = 0; rank < 2; ++rank) kill(process_of(rank), SIGQUIT);
    return ++requests >= 50 && std::filesystem::exists(file(0)) && std::filesystem::exists(file(1));
  });
  const size_t steps = metrics().size();
  wait_for_steps(steps + 5);
  EXPECT_GE(metrics().size(), steps + 5);
  program.signal(SIGUSR1);
  EXPECT_EQ(program.wait().status, 75);
  const std::vector<nlohmann::json> records = lines(file(1));
  ASSERT_GT(records.size(), 20);
  EXPECT_EQ(records[0].at("rank"), 1);
  const nlohmann::json& last = records.back();
  for (const char* key : {"number", "group", "in_group", "operation", "reduce", "dtype", "shape", "purpose", "place",
                          "issued", "started", "ended", "waited", "bytes"}) {
    EXPECT_TRUE(last.contains(key)) << key;
  }
}

TEST_F(StandStill, DiagnoseNeedsRecords) {
  EXPECT_EQ(only_complaint(run_meshtrain({"diagnose", path("none").string()})),
            path("none").string() + " is not a run directory: it does not exist");
  std::filesystem::create_directories(path("empty"));
  EXPECT_TRUE(only_complaint(run_meshtrain({"diagnose", path("empty").string()}))
                  .ends_with("has no flight records: they are written when a run fails, when it makes no progress for "
                             "parallel.timeout, and on SIGQUIT"));
  std::filesystem::create_directories(path("bad/flight"));
  write("bad/flight/rank-00000.jsonl", "{\"rank\": 0\n");
  EXPECT_TRUE(only_complaint(run_meshtrain({"diagnose", path("bad").string()})).find("rank-00000.jsonl:1") !=
              std::string::npos);
}

// Each rank of each mesh is stopped in turn, and is named, and nobody else.
TEST_F(StandStill, EveryRankOfEveryMeshIsNamed) {
  if (!is_full_run()) GTEST_SKIP() << "2, 4 and 8 ranks take minutes";
  for (const auto& [ranks, mesh] : std::vector<std::pair<int, std::string>>{
           {2, "dp=2"}, {2, "tp=2"}, {2, "cp=2"}, {4, "dp=2,tp=2"}, {4, "cp=2,tp=2"}, {8, "dp=2,tp=2,cp=2"}}) {
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(mesh + " rank " + std::to_string(rank));
      std::filesystem::remove_all(run_dir);
      Program program(endless(ranks, mesh, {"parallel.stall_warning=2"}));
      wait_for_steps(static_cast<size_t>(10 + 7 * rank));
      const int process = process_of(rank);
      kill(process, SIGSTOP);
      wait_until([&] { return has(content(run_dir / "console.log"), " holds up "); });
      kill(process, SIGCONT);
      const size_t steps = metrics().size();
      wait_for_steps(steps + 5);
      program.signal(SIGUSR1);
      const Ending ending = program.wait();
      EXPECT_EQ(ending.status, 75) << ending.err;
      ASSERT_GE(warnings_of(ending).size(), 1) << ending.err;
      expect_match(warnings_of(ending)[0], "^" + name_of_rank(rank) + " holds up .* is stopped, by a signal");
    }
  }
}

// A rank that runs a third of the time, in every step.
TEST_F(StandStill, ARankThatIsSlowInEveryStepIsNamed) {
  Program program(endless(
      2, "dp=2",
      {"model.hidden_size=256", "model.intermediate_size=1024", "train.global_batch=32", "train.micro_batch=16"}));
  wait_for_steps(20);
  const int process = process_of(1);
  const std::string said = kSlowRank;
  const auto is_said = [&] { return has(content(run_dir / "console.log"), said); };
  EXPECT_FALSE(is_said()) << content(run_dir / "console.log");
  for (const auto start = Clock::now(); !is_said() && Clock::now() - start < within(seconds(60));) {
    for (int i = 0; i < 50; ++i) {
      kill(process, SIGSTOP);
      std::this_thread::sleep_for(milliseconds(2));
      kill(process, SIGCONT);
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  program.signal(SIGUSR1);
  const Ending ending = program.wait();
  EXPECT_EQ(ending.status, 75) << ending.err;
  expect_match(ending.late, "^meshtrain: warning: " + name_of_rank(1) + said +
                                R"(: in the last 20 steps the others waited \S+ s of a step's \S+ s for it \(\d+ %\))");
  EXPECT_EQ(count(ending.late, said), 1) << ending.late;
}

// Ranks of a small program, of which one makes a mistake: both collectives are printed, with the ranks that issued
// them.
class CollectiveFaults : public StandStill {
 protected:
  static Ending run(const std::string& kind, int ranks, int culprit, bool two_hosts = false) {
    const std::string half = std::to_string(ranks / 2);
    Words words = two_hosts ? Words{source_folder() + "/tests/support/two_hosts", "--ranks", half + "," + half,
                                    "--map-by", "node"}
                            : Words{source_folder() + "/tools/ranks", std::to_string(ranks)};
    words.insert(words.end(), {build_folder() + "/tests/collective_faults", kind, std::to_string(culprit)});
    return run_program(words);
  }
  static std::string short_name(int rank, int ranks) {
    return "rank " + std::to_string(rank) + " \\(" + (ranks == 2 ? "dp=0" : "dp=" + std::to_string(rank / 2)) +
           " cp=0 tp=" + std::to_string(rank % 2) + "\\)";
  }
  /// Returns the ranks of each mesh whose mistake is tried.
  static std::vector<std::pair<int, int>> culprits() {
    if (!is_full_run()) return {{4, 2}};
    std::vector<std::pair<int, int>> all;
    for (const int ranks : {2, 4, 8}) {
      for (int rank = 0; rank < ranks; ++rank) all.emplace_back(ranks, rank);
    }
    return all;
  }
  static constexpr const char* kSum = R"(all_reduce of \[64\] Float for tp.linear)";
};

TEST_F(CollectiveFaults, WithoutAMistakeNobodyIsNamed) {
  const Ending ending = run("none", 4, 0);
  EXPECT_EQ(ending.status, 3) << ending.err;
  EXPECT_TRUE(warnings_of(ending).empty()) << ending.err;
}

TEST_F(CollectiveFaults, ARankThatSleepsIsNamed) {
  for (const auto& [ranks, culprit] : culprits()) {
    const Ending ending = run("sleep", ranks, culprit);
    EXPECT_EQ(ending.status, 1) << ending.err;
    ASSERT_EQ(warnings_of(ending).size(), 1) << ending.err;
    // Its tp peer waits in the sum over tp, the others in the vote after it.
    expect_match(
        warnings_of(ending)[0],
        "^" + short_name(culprit, ranks) +
            R"( on \S+ holds up \d ranks?, for \d s in all_reduce of \[64\] Float for (tp.linear, number 20 of group tp)" +
            R"(|vote, number \d+ of group world): it has not reached this collective; it was in step 20,)");
  }
}

TEST_F(CollectiveFaults, ARankThatLeavesOneOutOrHasAnotherOrderIsNamedWithWhomItWaitsFor) {
  for (const std::string kind : {"skip", "order"}) {
    for (const auto& [ranks, culprit] : culprits()) {
      const Ending ending = run(kind, ranks, culprit);
      EXPECT_EQ(ending.status, 1) << ending.err;
      ASSERT_EQ(warnings_of(ending).size(), 1) << ending.err;
      const std::string warning = warnings_of(ending)[0];
      expect_match(
          warning,
          "^ranks issue collectives in different orders, or one rank skips a collective, and wait for each other");
      expect_match(warning,
                   short_name(culprit, ranks) +
                       R"( on \S+ in all_reduce of \[64\] Float for vote, number \d+ of group world, in step 20)");
      expect_match(warning,
                   short_name(culprit ^ 1, ranks) + R"( on \S+ in )" + kSum + ", number 20 of group tp, in step 20");
    }
  }
}

TEST_F(CollectiveFaults, AStageThatSleepsIsNamedAtTheEndOfTheChain) {
  for (int culprit = 0; culprit < 4; ++culprit) {
    const Ending ending = run("message_sleep", 4, culprit);
    EXPECT_EQ(ending.status, 1) << ending.err;
    ASSERT_EQ(warnings_of(ending).size(), 1) << ending.err;
    expect_match(
        warnings_of(ending)[0],
        "^rank " + std::to_string(culprit) + " \\(pp=" + std::to_string(culprit) +
            R"(\) on \S+ holds up 3 ranks, for \d s in message of \[64\] Float for pp.\w+, number \d+ of )" +
            R"(link pp \d>\d from rank \d to rank \d: it has not reached this collective; it was in step 20,)");
  }
}

TEST_F(CollectiveFaults, StagesThatWaitForEachOtherAreNamedWithBothLinks) {
  for (const std::string kind : {"message_skip", "message_order"}) {
    const Ending ending = run(kind, 4, 1);
    EXPECT_EQ(ending.status, 1) << ending.err;
    ASSERT_EQ(warnings_of(ending).size(), 1) << ending.err;
    const std::string warning = warnings_of(ending)[0];
    expect_match(
        warning,
        "^ranks issue collectives in different orders, or one rank skips a collective, and wait for each other");
    expect_match(warning, R"(rank 1 \(pp=1\) on \S+ in message of \[64\] Float for pp.input_gradients, number 20 of )"
                          "link pp 2>1 from rank 2 to rank 1, in step 20");
    expect_match(warning, R"(rank 2 \(pp=2\) on \S+ in message of \[64\] Float for pp.activations, number 20 of )"
                          "link pp 1>2 from rank 1 to rank 2, in step 20");
  }
}

// On one host the notice of a collective shows at once that another rank brings something else.
TEST_F(CollectiveFaults, AnotherOperationOrShapeEndsTheRunWithBoth) {
  for (const auto& [ranks, culprit] : culprits()) {
    for (const std::string kind : {"operation", "shape"}) {
      const Ending ending = run(kind, ranks, culprit);
      EXPECT_EQ(ending.status, 5) << ending.err;
      const std::string wrong = kind == "shape" ? R"(all_reduce .*output \[128\])" : R"(all_gather .*output \[128\])";
      expect_match(ending.err, short_name(culprit, ranks) + ": " + wrong + ".* made a different call");
      expect_match(ending.err,
                   short_name(culprit ^ 1, ranks) + R"(: all_reduce .*output \[64\].* made a different call)");
    }
  }
}

// Between hosts messages of another operation may have the right length.
TEST_F(CollectiveFaults, AnotherOperationOfTwoHostsIsNamedWithBoth) {
  const Ending probe = run("none", 2, 0, /*two_hosts=*/true);
  if (probe.status == 77) GTEST_SKIP() << probe.err;
  ASSERT_EQ(probe.status, 3) << probe.err;
  const Ending ending = run("operation", 2, 1, /*two_hosts=*/true);
  EXPECT_EQ(ending.status, 1) << ending.err;
  ASSERT_EQ(warnings_of(ending).size(), 1) << ending.err;
  expect_match(warnings_of(ending)[0], "^ranks issue different collectives as number 20 of group tp, and wait for ");
  expect_match(warnings_of(ending)[0],
               short_name(1, 2) + R"( on \S+ all_gather of \[128\] Float for tp.linear, in step 20)");
  expect_match(warnings_of(ending)[0], short_name(0, 2) + R"( on \S+ )" + kSum + ", in step 20");
}

TEST_F(StandStill, NobodyIsNamedInARunOfAThousandSteps) {
  const Ending ending = run_program(
      command(4, {"--mesh", "dp=2,tp=2", "--set", "train.steps=" + std::string(is_full_run() ? "1000" : "100"), "--set",
                  "parallel.stall_warning=2", "--set", "train.log_every=100", "--set", "checkpoint.every=50"}));
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(warnings_of(ending).empty()) << ending.err;
}

}  // namespace
}  // namespace meshtrain::testing

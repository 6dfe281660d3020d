#include "runtime/program/run/run.h"

#include <unistd.h>

#include <csignal>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/files/file_lock.h"
#include "tests/runtime/program/run/run_folder.h"
#include "tests/support/load.h"

namespace meshtrain::testing {
namespace {

class RunTest : public RunFolder {};

TEST_F(RunTest, TheErrorThatEndsItIsReportedOnceBeforeItIsThrown) {
  std::vector<std::string> reported;
  const RunOptions options{.run_dir = {}, .on_failure = [&](const std::exception& error) {
                             reported.emplace_back(error.what());
                             EXPECT_TRUE(LockFile(run_dir / "lock").is_taken())
                                 << "the report comes before the run ends";
                           }};
  const std::string thrown = failure<AgreedError>({"optimizer.learning_rate=1e38", "checkpoint.every=1"}, options);
  EXPECT_TRUE(has(thrown, "step 2: loss ")) << thrown;
  EXPECT_EQ(reported, Words{thrown});
}

TEST_F(RunTest, AnErrorBeforeTheFirstStepIsOnlyThrown) {
  const RunOptions options{.run_dir = {}, .on_failure = [](const std::exception& error) { FAIL() << error.what(); }};
  EXPECT_NE(failure<InputError>({"data.tokens=" + path("none").string()}, options), "");
  EXPECT_FALSE(std::filesystem::exists(run_dir));
}

TEST_F(RunTest, ARequestThatCameEarlyTakesEffectAfterTheFirstStep) {
  const StopRequest request;
  ASSERT_EQ(kill(getpid(), SIGUSR1), 0);
  ASSERT_TRUE(wait_until([&] { return request.requested(); }));
  EXPECT_EQ(meshtrain::run(recipe({"checkpoint.every=3"}), Group(), {.run_dir = run_dir}, request), RunEnd::Stopped);
  EXPECT_EQ(lines("metrics.jsonl").size(), 1u);
  EXPECT_EQ(checkpoints(), Words{"step-00000001"}) << "checkpoint.every does not matter";
  EXPECT_EQ(events(), (Words{"started", "checkpoint", "stopped"}));
  EXPECT_EQ(lines("events.jsonl").back().at("signal"), "SIGUSR1");
}

}  // namespace
}  // namespace meshtrain::testing

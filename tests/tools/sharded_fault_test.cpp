// A rank fails while the others wait for its shards: the job ends within seconds, with one message that names the rank,
// the step and the part of the model.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <regex>

#include "mesh/forwarding.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/run/run.h"
#include "tests/support/load.h"
#include "tests/support/world.h"
#include "tests/tools/train_program.h"
#include "tools/meshtrain/commands.h"

namespace meshtrain::testing {
namespace {

/// A backend that fails on rank 1 when the n-th collective of a purpose is issued, in every group split from it.
class Faulty final : public ForwardingBackend {
 public:
  Faulty(std::shared_ptr<Backend> inner, std::string purpose, std::shared_ptr<int> countdown)
      : ForwardingBackend(std::move(inner)), purpose_(std::move(purpose)), countdown_(std::move(countdown)) {}

  Work issue(const Collective& collective) override {
    if (world().rank() == 1 && collective.purpose == purpose_ && --*countdown_ == 0) {
      throw std::runtime_error("the memory is worn out");
    }
    return inner()->issue(collective);
  }

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override {
    return std::make_shared<Faulty>(std::move(part), purpose_, countdown_);
  }

 private:
  std::string purpose_;
  std::shared_ptr<int> countdown_;
};

/// Runs `meshtrain train` with a fault. The tests below start it on several ranks.
TEST(Victim, DISABLED_Trains) {
  const auto countdown = std::make_shared<int>(std::stoi(required("VICTIM_COUNTDOWN")));
  auto backend = std::make_shared<Faulty>(world().backend(), required("VICTIM_PURPOSE"), countdown);
  const Group faulty(backend, world().name(), world().ranks(), world().coordinate_text());
  std::exit(run_on_all_ranks(faulty, [&] {
    const Recipe recipe = load_recipe(required("VICTIM_RECIPE"), {"train.steps=1000", required("VICTIM_SETTING")},
                                      required("VICTIM_MESH"));
    return static_cast<int>(run(recipe, faulty, {.run_dir = required("VICTIM_RUN_DIR")}, StopRequest()));
  }));
}

class ShardedFault : public TrainProgram {
 protected:
  void SetUp() override {
    if (world().size() > 1) GTEST_SKIP() << "starts ranks of its own";
  }

  Ending run_victim(int ranks, const std::string& mesh, const std::string& setting, const std::string& purpose,
                    int countdown) const {
    return run_program(
        {source_folder() + "/tools/ranks", std::to_string(ranks),
         std::filesystem::read_symlink("/proc/self/exe").string(), "--gtest_also_run_disabled_tests",
         "--gtest_filter=Victim.DISABLED_Trains", run_dir.string() + "/"},
        {"VICTIM_RECIPE=" + recipe.string(), "VICTIM_RUN_DIR=" + run_dir.string(), "VICTIM_MESH=" + mesh,
         "VICTIM_SETTING=" + setting, "VICTIM_PURPOSE=" + purpose, "VICTIM_COUNTDOWN=" + std::to_string(countdown)});
  }
};

using Clock = std::chrono::steady_clock;

TEST_F(ShardedFault, AnExceptionInOneRanksBackwardEndsTheJob) {
  for (const auto& [ranks, mesh] : {std::pair{2, "dp=2"}, {4, "dp=4"}, {4, "dp=2,tp=2"}}) {
    const Clock::time_point start = Clock::now();
    const Ending ending = run_victim(ranks, mesh, "parallel.fsdp.mode=full_shard", "dp.gradients", 11);
    const std::string message = complaint(ending, 1);
    EXPECT_LT(Clock::now() - start, within(std::chrono::seconds(20)));
    const std::string rank = std::string(mesh) == "dp=2,tp=2" ? "rank 1 \\(dp=0 cp=0 tp=1\\)" : "rank 1 \\(dp=1 .*\\)";
    std::smatch found;
    ASSERT_TRUE(
        std::regex_match(message, found, std::regex(rank + ": step ([0-9]+), backward of .*: the memory is worn out")))
        << message;
    expect_steps(metrics(), std::stoul(found[1]) - 1);
    std::filesystem::remove_all(run_dir);
  }
}

TEST_F(ShardedFault, AnExceptionWhileParametersAreGatheredEndsTheJob) {
  const std::string message = complaint(run_victim(2, "dp=2", "parallel.fsdp.mode=full_shard", "dp.parameters", 20), 1);
  EXPECT_TRUE(std::regex_match(
      message, std::regex("rank 1 \\(dp=1 cp=0 tp=0\\): step [0-9]+, (for|back)ward of .*: the memory is worn out")))
      << message;
}

/// The killed rank prints nothing; another rank reports what it has seen of it.
TEST_F(ShardedFault, ARankThatIsKilledEndsTheJob) {
  for (const auto& [ranks, mode] : {std::pair{2, "full_shard"}, {4, "full_shard"}, {4, "shard_grad_op"}}) {
    const std::string after_some_steps = "[ $OMPI_COMM_WORLD_RANK != 1 ] || (while [ ! -s " +
                                         (run_dir / "metrics.jsonl").string() +
                                         " ]; do sleep 0.05; done; sleep 0.2; kill -9 $$) &";
    const Ending ending =
        train(ranks,
              {"--mesh", "dp=auto", "--set", "train.steps=1000000", "--set", std::string("parallel.fsdp.mode=") + mode},
              after_some_steps);
    EXPECT_NE(ending.status, 0);
    const std::string message = complaint(ending, ending.status);
    // The part of a step that it was in, whichever that is: not the last unit that it computed before.
    const std::string part = "(for|back)ward of [a-z0-9 ]+|count of labels|norm and vote|optimizer|metrics";
    EXPECT_TRUE(std::regex_match(
        message,
        std::regex("rank 1 \\(dp=1 cp=0 tp=0\\) ended without a message: .*; it was in "
                   "(step [0-9]+(, (" +
                   part +
                   "))?|the reading of step [0-9]+'s samples); the last collective "
                   "seen of it was [a-z_]+ of \\[[0-9, ]*\\] [A-Za-z]+ for [a-z. ]+, number [0-9]+ of group [a-z_]+")))
        << message;
    EXPECT_GE(metrics().size(), 1u);
    std::filesystem::remove_all(run_dir);
  }
}

}  // namespace
}  // namespace meshtrain::testing

// A rank that makes the others wait in every step is named once, and nobody else ever is.

#include "runtime/program/run/stragglers.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace meshtrain {
namespace {

using Random = std::mt19937;

/// Returns a step in which each rank computes for `computing` seconds, and waits for the slowest.
std::vector<RankStep> step(const std::vector<double>& computing) {
  const double slowest = *std::max_element(computing.begin(), computing.end());
  std::vector<RankStep> ranks;
  for (const double seconds : computing) {
    RankStep rank;
    rank.step_seconds = slowest + 0.01;
    rank.collectives = {{0.01 + slowest - seconds, 0.01 + slowest - seconds, 0}};
    ranks.push_back(rank);
  }
  return ranks;
}

std::vector<double> noisy(Random& random, size_t ranks, double noise) {
  std::vector<double> computing;
  for (size_t i = 0; i < ranks; ++i) {
    computing.push_back(0.1 * (1 + noise * std::uniform_real_distribution<double>(0, 1)(random)));
  }
  return computing;
}

MeshLayout layout(int64_t ranks) {
  return MeshLayout({{"dp", ranks / 2}, {"cp", 1}, {"tp", 2}});
}

TEST(Stragglers, ASlowRankIsNamedOnceUntilItHasRecovered) {
  for (const int64_t ranks : {2, 4, 8}) {
    for (int64_t slow = 0; slow < ranks; ++slow) {
      Random random(7);
      Stragglers stragglers(layout(ranks), std::vector<std::string>(static_cast<size_t>(ranks), "node7"));
      std::vector<std::string> lines;
      const auto run = [&](int steps, double factor) {
        for (int i = 0; i < steps; ++i) {
          std::vector<double> computing = noisy(random, static_cast<size_t>(ranks), 0.2);
          computing[static_cast<size_t>(slow)] = 0.1 * factor;
          if (const std::string line = stragglers.note(step(computing)); !line.empty()) lines.push_back(line);
        }
      };
      run(100, 1.1);
      EXPECT_TRUE(lines.empty()) << lines[0];
      run(100, 1.8);
      ASSERT_EQ(lines.size(), 1u);
      const std::string name =
          "rank " + std::to_string(slow) + " (" + layout(ranks).describe(slow) + ") on node7 is slower";
      EXPECT_NE(lines[0].find(name), std::string::npos) << lines[0];
      run(100, 1.1);
      run(100, 1.8);
      EXPECT_EQ(lines.size(), 2u);
    }
  }
}

TEST(Stragglers, NoiseNamesNobodyInThousandSteps) {
  for (const double noise : {0.1, 0.5, 3.0}) {
    Random random(1);
    Stragglers stragglers(layout(8), {});
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(stragglers.note(step(noisy(random, 8, noise))), "") << noise;
  }
}

// Another program takes a core for some seconds, which are many steps.
TEST(Stragglers, ARankThatIsSlowForSecondsIsNotNamed) {
  Stragglers stragglers(layout(2), {});
  const auto run = [&](double seconds, double slow) {
    std::string lines;
    for (double time = 0; time < seconds; time += slow + 0.01) lines += stragglers.note(step({slow, 0.02}));
    return lines;
  };
  EXPECT_EQ(run(9, 0.06), "");
  run(3, 0.02);
  EXPECT_EQ(run(9, 0.06), "");
  EXPECT_NE(run(3, 0.06), "");
}

// A rank that is the slowest in 19 of 20 steps is named, however short the steps are.
TEST(Stragglers, AFewOtherStepsDoNotHideASlowRank) {
  Random random(7);
  Stragglers stragglers(layout(2), {});
  std::string lines;
  for (double time = 0; time < 60; time += 0.07) {
    const bool is_other = std::uniform_real_distribution(0.0, 1.0)(random) < 0.08;
    lines += stragglers.note(step({is_other ? 0.02 : 0.06, is_other ? 0.06 : 0.02}));
  }
  EXPECT_NE(lines.find("rank 0 "), std::string::npos) << lines;
}

// Two classes of four ranks. Those of the second class have half the work and wait for the first class in every step.
TEST(Stragglers, ARankIsComparedWithThoseThatDoTheSameWork) {
  const auto named = [](const std::vector<double>& factors) {
    const std::vector<int64_t> classes = {0, 0, 1, 1, 0, 0, 1, 1};
    Random random(7);
    Stragglers stragglers(layout(8), {}, classes);
    std::string lines;
    for (int i = 0; i < 200; ++i) {
      std::vector<double> computing = noisy(random, 8, 0.2);
      for (size_t rank = 0; rank < 8; ++rank) computing[rank] *= factors[rank] * (classes[rank] == 1 ? 0.5 : 1);
      lines += stragglers.note(step(computing));
    }
    return lines;
  };
  EXPECT_EQ(named({1, 1, 1, 1, 1, 1, 1, 1}), "");
  EXPECT_EQ(named({1, 1, 1, 1, 1, 1, 1.9, 1}).substr(0, 7), "rank 6 ") << "no slower than ranks of the other class";
  EXPECT_EQ(named({1, 1, 1, 1, 1.8, 1, 1, 1}).substr(0, 7), "rank 4 ");
}

// Two stages of two ranks, of which the first has three times the work.
TEST(Stragglers, ARankOfAPipelineIsComparedWithThoseOfItsStage) {
  const MeshLayout stages({{"pp", 2}, {"dp", 2}, {"cp", 1}, {"tp", 1}});
  const auto named = [&](double third) {
    Stragglers stragglers(stages, {});
    std::string lines;
    for (int i = 0; i < 200; ++i) lines += stragglers.note(step({0.3, 0.3, third, 0.1}));
    return lines;
  };
  EXPECT_EQ(named(0.1), "");
  EXPECT_EQ(named(0.25).substr(0, 27), "rank 2 (pp=1 dp=0 cp=0 tp=0");
}

// A class of one rank has no other rank to compare with.
TEST(Stragglers, ARankWithWorkOfItsOwnIsNotNamed) {
  Stragglers stragglers(layout(4), {}, {0, 0, 0, 1});
  for (int i = 0; i < 200; ++i) EXPECT_EQ(stragglers.note(step({0.1, 0.1, 0.1, 0.3})), "");
}

TEST(Stragglers, MillisecondsNameNobody) {
  Stragglers stragglers(layout(4), {});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(stragglers.note(step({0.004, 0.001, 0.001, 0.001})), "");
}

TEST(Stragglers, WhereHostsDoNotWaitNobodyIsNamed) {
  Stragglers stragglers(layout(2), {});
  for (int i = 0; i < 100; ++i) {
    std::vector<RankStep> ranks = step({0.1, 0.9});
    for (RankStep& rank : ranks) rank.collectives[0].exposed = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(stragglers.note(ranks), "");
  }
}

}  // namespace
}  // namespace meshtrain

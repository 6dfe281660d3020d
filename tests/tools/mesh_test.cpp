#include <gtest/gtest.h>

#include "tests/support/messages.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

TEST(MeshCommand, PrintsWhoSitsWhere) {
  const Ending ending = run_meshtrain({"mesh", "--mesh", "dp=2,tp=2,cp=2", "--hosts-of", "4"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.out,
            "mesh dp=2,cp=2,tp=2: 8 ranks on 2 hosts; outermost axis first, tp has neighbouring ranks\n"
            "\n"
            "    rank    host      dp      cp      tp\n"
            "       0       0       0       0       0\n"
            "       1       0       0       0       1\n"
            "       2       0       0       1       0\n"
            "       3       0       0       1       1\n"
            "       4       1       1       0       0\n"
            "       5       1       1       0       1\n"
            "       6       1       1       1       0\n"
            "       7       1       1       1       1\n"
            "\n"
            "  dp      4 groups of 2, 4 across hosts (*), up to 2: {0, 4}* {1, 5}* {2, 6}* {3, 7}*\n"
            "  cp      4 groups of 2, each within a host: {0, 2} {1, 3} {4, 6} {5, 7}\n"
            "  tp      4 groups of 2, each within a host: {0, 1} {2, 3} {4, 5} {6, 7}\n"
            "  dp x cp 2 groups of 4, 2 across hosts (*), up to 2: {0, 2, 4, 6}* {1, 3, 5, 7}*\n");
}

TEST(MeshCommand, DrawsStagesAsTheOutermostAxis) {
  const Ending ending = run_meshtrain({"mesh", "--mesh", "pp=2,dp=2,cp=2", "--hosts-of", "4"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "    rank    host      pp      dp      cp      tp\n")) << ending.out;
  EXPECT_TRUE(has(ending.out, "       5       1       1       0       1       0\n")) << ending.out;
  EXPECT_TRUE(
      has(ending.out, "  pp      4 groups of 2, 4 across hosts (*), up to 2: {0, 4}* {1, 5}* {2, 6}* {3, 7}*\n"))
      << ending.out;
  EXPECT_TRUE(has(ending.out, "  dp x cp 2 groups of 4, each within a host: {0, 1, 2, 3} {4, 5, 6, 7}\n"))
      << "stages have other layers, whose gradients are not summed\n"
      << ending.out;
}

TEST(MeshCommand, TakesEpAsNoFactorOfTheRanks) {
  const Ending ending = run_meshtrain({"mesh", "--mesh", "dp=2,tp=2,ep=4"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "mesh dp=2,cp=1,tp=2,ep=4: 4 ranks on 1 host;")) << ending.out;
}

TEST(MeshCommand, DrawsTheGroupsOfExpertsOfEachStage) {
  const Ending ending = run_meshtrain({"mesh", "--mesh", "pp=2,dp=2,tp=2,ep=2", "--order", "dp,pp,tp"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "    rank    host      cp      dp      pp      tp     edp      ep\n")) << ending.out;
  EXPECT_TRUE(has(ending.out, "       5       0       0       1       0       1       1       1\n")) << ending.out;
  EXPECT_TRUE(has(ending.out,
                  "  edp     4 groups of 2, each within a host: {0, 4} {1, 5} {2, 6} {3, 7}\n"
                  "  ep      4 groups of 2, each within a host: {0, 1} {2, 3} {4, 5} {6, 7}\n"))
      << ending.out;
}

TEST(MeshCommand, SaysWhichLayersAStageHas) {
  const std::string recipe = source_folder() + "/recipes/quickstart.yaml";
  const Ending two = run_meshtrain({"mesh", recipe, "--mesh", "pp=2,tp=2", "--set", "parallel.pipeline.layers=[1, 3]"});
  ASSERT_EQ(two.status, 0) << two.err;
  EXPECT_TRUE(
      has(two.out,
          "\n  pipeline over pp: 1f1b over 2 stages of 1 and 3 layers\n"
          "  pp=0    embedding, block 0\n"
          "  pp=1    blocks 1 to 3, head\n"
          "  each stage sends the next, for a micro-batch, 524,288 bytes forward and gets as many backward, over "
          "links pp 0>1 and pp 1>0\n"))
      << two.out;
  const Ending several =
      run_meshtrain({"mesh", recipe, "--mesh", "pp=2", "--set", "parallel.pipeline.stages_per_rank=2"});
  EXPECT_TRUE(has(several.out,
                  "  pp=0    stage 0: embedding, block 0; stage 2: block 2\n"
                  "  pp=1    stage 1: block 1; stage 3: block 3, head\n"))
      << several.out << several.err;
  EXPECT_FALSE(has(run_meshtrain({"mesh", recipe, "--mesh", "dp=2"}).out, "pipeline"));
}

TEST(MeshCommand, TakesAnyOrderAndAuto) {
  const Ending ending = run_meshtrain({"mesh", "--mesh", "dp=auto,cp=2", "--ranks", "6", "--order", "tp,cp,dp"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "mesh tp=1,cp=2,dp=3: 6 ranks on 1 host;")) << ending.out;
  EXPECT_TRUE(has(ending.out, "  tp      each rank alone\n")) << ending.out;
  EXPECT_TRUE(has(ending.out, "  dp      2 groups of 3, each within a host: {0, 1, 2} {3, 4, 5}\n")) << ending.out;
}

TEST(MeshCommand, AxesThatTheOrderLeavesOutAreTheOutermost) {
  const Ending ending = run_meshtrain({"mesh", "--mesh", "dp=2,tp=3,cp=4", "--order", "tp,dp"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "mesh cp=4,tp=3,dp=2: 24 ranks on 1 host;")) << ending.out;
}

TEST(MeshCommand, AbbreviatesLargeMeshes) {
  const Ending ending = run_meshtrain({"mesh", "--mesh", "dp=256,tp=8,cp=8", "--hosts-of", "8"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_LT(ending.out.size(), 3000u);
  EXPECT_TRUE(has(ending.out, "16,384 ranks on 2,048 hosts")) << ending.out;
  EXPECT_TRUE(has(ending.out, "   16383    2047     255       7       7\n")) << ending.out;
  EXPECT_TRUE(has(ending.out, "  tp      2,048 groups of 8, each within a host: {0, 1, 2, 3, 4, 5, 6, 7}"))
      << ending.out;
  EXPECT_TRUE(has(ending.out,
                  "  dp      64 groups of 256, 64 across hosts (*), up to 256: {0, 64, 128, 192, 256, 320, "
                  "..., 16320}*"))
      << ending.out;
}

TEST(MeshCommand, RefusesWhatDoesNotFit) {
  const auto complaint = [](std::vector<std::string> words) {
    words.insert(words.begin(), "mesh");
    return only_complaint(run_meshtrain(words));
  };
  EXPECT_TRUE(has(complaint({"--mesh", "dp=3,tp=2", "--ranks", "8"}), "dp=3 x cp=1 x tp=2 needs 6 ranks, but 8"));
  EXPECT_EQ(complaint({"--mesh", "dp=auto"}), "mesh dp=auto: give --ranks, the total number of ranks");
  EXPECT_TRUE(has(complaint({"--mesh", "dp=2,xp=2"}), "unknown axis xp: the axes are pp, dp, cp, tp, ep"));
  EXPECT_EQ(complaint({"--mesh", "pipeline=2"}),
            "--mesh pipeline=2: unknown axis pipeline; here it is pp: the axes are pp, dp, cp, tp, ep");
  EXPECT_TRUE(has(complaint({"--mesh", "dp=0"}), "dp=0"));
  EXPECT_TRUE(has(complaint({"--mesh", "dp"}), "'dp' is not an axis and its size"));
  EXPECT_EQ(complaint({"--mesh", "dp=2", "--order", "dp,tp,dp"}),
            "--order names dp more than once: name each axis once, as in --order pp,dp,cp,tp");
  EXPECT_EQ(complaint({"--mesh", "dp=2", "--order", "dp,xp"}),
            "--order names xp, but the axes are pp, dp, cp, tp, as in --order pp,dp,cp,tp");
  EXPECT_EQ(complaint({"--mesh", "dp=99999999999,tp=99999999999"}), "mesh: more than 1048576 ranks to print");
  EXPECT_TRUE(has(complaint({"--mesh", "dp=auto", "--ranks", "0"}), "--ranks"));
}

TEST(MeshCommand, SaysHowARecipesAttentionIsCut) {
  const std::string recipe = source_folder() + "/recipes/quickstart.yaml";
  const Ending ring = run_meshtrain({"mesh", recipe, "--mesh", "dp=2,cp=2"});
  ASSERT_EQ(ring.status, 0) << ring.err;
  EXPECT_TRUE(has(ring.out, "mesh dp=2,cp=2,tp=1: 4 ranks on 1 host;")) << ring.out;
  EXPECT_TRUE(has(ring.out, "attention over cp: ")) << ring.out;
  EXPECT_TRUE(has(ring.out, " tokens a rank are too few to hide the hops of a ring")) << ring.out;
  EXPECT_TRUE(has(ring.out, "each rank holds 128 of 256 positions")) << ring.out;
  EXPECT_TRUE(has(ring.out, " bytes forward and ")) << ring.out;

  const Ending other = run_meshtrain({"mesh", recipe, "--mesh=cp=2", "--set", "parallel.context.algorithm=ulysses"});
  EXPECT_TRUE(has(other.out, "attention over cp: ulysses, contiguous: as requested")) << other.out << other.err;

  const Ending alone = run_meshtrain({"mesh", recipe});
  ASSERT_EQ(alone.status, 0) << alone.err;
  EXPECT_FALSE(has(alone.out, "attention over cp")) << alone.out;

  const Ending wrong = run_meshtrain({"mesh", recipe, "--mesh", "cp=7"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_TRUE(has(wrong.err, "train.sequence_length: 256 is not a multiple of cp = 7")) << wrong.err;

  const Ending neither = run_meshtrain({"mesh"});
  EXPECT_EQ(neither.status, 2);
  EXPECT_TRUE(has(neither.err, "give a recipe or --mesh")) << neither.err;
}

}  // namespace
}  // namespace meshtrain::testing

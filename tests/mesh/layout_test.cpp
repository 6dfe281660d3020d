#include "mesh/layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>

#include "mesh/base/error.h"
#include "tests/support/messages.h"

namespace meshtrain {
namespace {

using testing::message;

const std::vector<std::string> kOrder{"dp", "tp", "cp"};

std::string fit_refusal(const std::map<std::string, int64_t>& sizes, int64_t ranks) {
  return message<InputError>([&] { MeshLayout::fit(sizes, kOrder, ranks); });
}

TEST(MeshLayout, LastAxisIsOfNeighbours) {
  const MeshLayout layout({{"dp", 2}, {"tp", 3}, {"cp", 4}});
  EXPECT_EQ(layout.size(), 24);
  EXPECT_EQ(layout.size("tp"), 3);
  EXPECT_EQ(layout.coordinate(0), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(layout.coordinate(1), (std::vector<int64_t>{0, 0, 1}));
  EXPECT_EQ(layout.coordinate(4), (std::vector<int64_t>{0, 1, 0}));
  EXPECT_EQ(layout.coordinate(23), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(layout.coordinate(12, "dp"), 1);
  EXPECT_EQ(layout.describe(17), "dp=1 tp=1 cp=1");
  EXPECT_EQ(layout.describe(), "dp=2,tp=3,cp=4");
}

TEST(MeshLayout, GroupsAscendInMeshOrder) {
  const MeshLayout layout({{"dp", 2}, {"tp", 3}, {"cp", 4}});
  EXPECT_EQ(layout.group({"cp"}, 6), (std::vector<int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(layout.group({"tp"}, 6), (std::vector<int64_t>{2, 6, 10}));
  EXPECT_EQ(layout.group({"dp"}, 6), (std::vector<int64_t>{6, 18}));
  EXPECT_EQ(layout.group({"cp", "dp"}, 6), (std::vector<int64_t>{4, 5, 6, 7, 16, 17, 18, 19}));
  EXPECT_EQ(layout.group({}, 6), (std::vector<int64_t>{6}));
  std::vector<int64_t> everyone(24);
  std::iota(everyone.begin(), everyone.end(), 0);
  EXPECT_EQ(layout.group({"dp", "tp", "cp"}, 6), everyone);
}

TEST(MeshLayout, HoldsForSixteenThousandRanks) {
  const MeshLayout layout({{"dp", 128}, {"cp", 16}, {"tp", 8}});
  ASSERT_EQ(layout.size(), 16384);
  for (int64_t rank = 0; rank < layout.size(); ++rank) {
    ASSERT_EQ(layout.rank(layout.coordinate(rank)), rank);
  }
  // The groups of an axis are disjoint, have the axis's size, and together contain every rank.
  for (const Axis& axis : layout.axes()) {
    std::set<int64_t> seen;
    for (int64_t rank = 0; rank < layout.size(); ++rank) {
      if (layout.coordinate(rank, axis.name) != 0) continue;
      const std::vector<int64_t> group = layout.group({axis.name}, rank);
      ASSERT_EQ(static_cast<int64_t>(group.size()), axis.size);
      for (int64_t coordinate = 0; coordinate < axis.size; ++coordinate) {
        ASSERT_EQ(layout.coordinate(group[coordinate], axis.name), coordinate);
        ASSERT_TRUE(seen.insert(group[coordinate]).second);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), layout.size());
  }
  EXPECT_EQ(layout.group({"dp", "cp", "tp"}, 5).size(), 16384u);
}

TEST(MeshLayout, RefusesRanksAndCoordinatesThatAreNotThere) {
  const MeshLayout layout({{"dp", 2}, {"tp", 2}});
  EXPECT_THROW(layout.coordinate(-1), std::out_of_range);
  EXPECT_THROW(layout.coordinate(4), std::out_of_range);
  EXPECT_THROW(layout.rank({0, 2}), std::out_of_range);
  EXPECT_THROW(layout.rank({0}), std::invalid_argument);
  EXPECT_EQ(message<InputError>([&] { layout.size("ep"); }), "mesh dp=2,tp=2 has no axis 'ep'");
}

TEST(MeshLayout, ATrainingAxisThatItLacksHasOneRank) {
  const MeshLayout layout({{"dp", 2}, {"tp", 2}});
  EXPECT_EQ(layout.size("pp"), 1);
  EXPECT_EQ(layout.coordinate(3, "pp"), 0);
  EXPECT_EQ(layout.group({"pp", "tp"}, 2), (std::vector<int64_t>{2, 3}));
}

TEST(MeshLayout, HasAPipelineWhereItIsLongerThanOneRank) {
  EXPECT_EQ(MeshLayout::fit({{"pp", 1}, {"dp", 2}}, training_axes(), 2).describe(), "dp=2,cp=1,tp=1");
  EXPECT_EQ(MeshLayout::fit({{"pp", 0}, {"dp", 2}}, training_axes(), 2).describe(), "dp=2,cp=1,tp=1");
  EXPECT_EQ(MeshLayout::fit({{"pp", 0}, {"dp", 2}}, training_axes(), 8).describe(), "pp=4,dp=2,cp=1,tp=1");
}

TEST(MeshLayout, SeesTheRanksOfAStageAsExpertsDo) {
  const MeshLayout layout =
      MeshLayout::fit({{"pp", 2}, {"dp", 2}, {"tp", 2}, {"cp", 2}, {"ep", 4}}, {"dp", "pp", "cp", "tp"}, 16);
  EXPECT_EQ(layout.describe(), "dp=2,pp=2,cp=2,tp=2,ep=4");
  EXPECT_EQ(layout.experts().describe(), "edp=2,ep=4");
  EXPECT_EQ(layout.ep(), 4);
  EXPECT_THROW(layout.size("ep"), InputError) << "it is no axis of these ranks";
  EXPECT_EQ(layout.sizes(), (std::map<std::string, int64_t>{{"pp", 2}, {"dp", 2}, {"tp", 2}, {"cp", 2}, {"ep", 4}}));
  // The ranks of stage 1 are 4 to 7 and 12 to 15; ep takes tp and cp.
  EXPECT_EQ(layout.describe(14), "dp=1 pp=1 cp=1 tp=0 ep=2");
  EXPECT_EQ(layout.describe(7), "dp=0 pp=1 cp=1 tp=1 ep=3");
  EXPECT_EQ(MeshLayout({{"dp", 4}}).ep(), 1);
}

TEST(MeshLayout, ExpertsAreNoFactorOfTheRanks) {
  EXPECT_EQ(MeshLayout::fit({{"dp", 2}, {"tp", 2}, {"ep", MeshLayout::kAuto}}, kOrder, 4).ep(), 2);
  EXPECT_EQ(MeshLayout::fit({{"dp", MeshLayout::kAuto}, {"ep", 8}}, kOrder, 8).describe(), "dp=8,tp=1,cp=1,ep=8");
  EXPECT_EQ(fit_refusal({{"dp", 6}, {"ep", 4}}, 6),
            "mesh dp=6 x tp=1 x cp=1: ep=4 does not divide its 6 ranks, dp x cp x tp: give a divisor of their number");
  EXPECT_EQ(ranks_of({{"dp", 2}, {"tp", 3}, {"ep", 6}, {"cp", MeshLayout::kAuto}}), 6);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ranks_of({{"dp", most}, {"tp", most}}), most);
}

TEST(MeshLayout, RefusesAxesThatMakeNoSense) {
  EXPECT_EQ(message<InputError>([] { MeshLayout({{"dp", 0}}); }), "mesh dp=auto: axis dp needs at least 1 rank");
  EXPECT_EQ(message<InputError>([] { MeshLayout({{"dp", -2}}); }), "mesh dp=-2: axis dp needs at least 1 rank");
  EXPECT_EQ(message<InputError>([] {
              MeshLayout({{"dp", 2}, {"dp", 2}});
            }),
            "mesh dp=2 x dp=2: axis dp is named twice: name it once");
  EXPECT_EQ(message<InputError>([] { MeshLayout({{"", 2}}); }), "mesh =2: an axis has no name");
}

TEST(MeshLayout, FitsWhatIsAskedForIntoTheOrder) {
  EXPECT_EQ(MeshLayout::fit({{"cp", 2}, {"dp", 4}}, kOrder, 8).describe(), "dp=4,tp=1,cp=2");
  EXPECT_EQ(MeshLayout::fit({{"dp", MeshLayout::kAuto}, {"tp", 2}}, kOrder, 8).describe(), "dp=4,tp=2,cp=1");
  EXPECT_EQ(MeshLayout::fit({{"dp", MeshLayout::kAuto}, {"tp", 8}}, kOrder, 8).describe(), "dp=1,tp=8,cp=1");
  EXPECT_EQ(MeshLayout::fit({}, kOrder, 1).describe(), "dp=1,tp=1,cp=1");
  EXPECT_EQ(MeshLayout::fit({{"tp", 3}}, {"cp", "tp"}, 3).describe(), "cp=1,tp=3");
}

TEST(MeshLayout, NamesEveryFactorOfAMeshThatDoesNotFit) {
  EXPECT_EQ(fit_refusal({{"dp", 3}, {"tp", 2}}, 8),
            "mesh dp=3 x tp=2 x cp=1 needs 6 ranks, but 8 were started: change --mesh or mpirun -n; "
            "--mesh dp=4,tp=2,cp=1 would fit");
  EXPECT_EQ(fit_refusal({{"dp", 2}}, 1),
            "mesh dp=2 x tp=1 x cp=1 needs 2 ranks, but 1 was started: change --mesh or mpirun -n; "
            "--mesh dp=1,tp=1,cp=1 would fit");
  EXPECT_EQ(fit_refusal({{"dp", 2}, {"tp", 2}, {"ep", 4}}, 8),
            "mesh dp=2 x tp=2 x cp=1 needs 4 ranks, but 8 were started: change --mesh or mpirun -n; "
            "--mesh dp=4,tp=2,cp=1,ep=4 would fit");
  EXPECT_EQ(fit_refusal({{"dp", 4}, {"ep", 4}}, 2),
            "mesh dp=4 x tp=1 x cp=1 needs 4 ranks, but 2 were started: change --mesh or mpirun -n; "
            "--mesh dp=2,tp=1,cp=1 would fit");
  EXPECT_EQ(fit_refusal({}, 2),
            "mesh dp=1 x tp=1 x cp=1 needs 1 rank, but 2 were started: change --mesh or mpirun -n; "
            "--mesh dp=2,tp=1,cp=1 would fit");
  EXPECT_EQ(fit_refusal({{"tp", 2}, {"cp", 2}}, 6),
            "mesh dp=1 x tp=2 x cp=2 needs 4 ranks, but 6 were started: change --mesh or mpirun -n; "
            "--mesh dp=6,tp=1,cp=1 would fit");
  EXPECT_EQ(fit_refusal({{"dp", 0}, {"tp", 3}}, 8),
            "mesh dp=auto x tp=3 x cp=1 needs a multiple of 3 ranks, but 8 were started: change --mesh or mpirun -n; "
            "--mesh dp=8,tp=1,cp=1 would fit");
  EXPECT_EQ(fit_refusal({{"dp", 0}, {"tp", 16}}, 8),
            "mesh dp=auto x tp=16 x cp=1 needs a multiple of 16 ranks, but 8 were started: change --mesh or mpirun -n; "
            "--mesh dp=8,tp=1,cp=1 would fit");
  EXPECT_EQ(fit_refusal({{"dp", 0}, {"tp", 0}}, 8),
            "mesh dp=auto x tp=auto x cp=1: one axis may be auto, the sizes of the others must be given");
  EXPECT_EQ(fit_refusal({{"pp", 2}}, 8), "mesh pp=2: unknown axis pp: the axes are dp, tp, cp");
  EXPECT_EQ(fit_refusal({{"tp", -1}}, 8), "mesh dp=1 x tp=-1 x cp=1: axis tp needs at least 1 rank, or auto");
  const int64_t huge = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_EQ(
      fit_refusal({{"dp", huge}, {"tp", 3}}, 8),
      "mesh dp=" + std::to_string(huge) + " x tp=3 x cp=1 has more ranks than can be counted: make an axis smaller");
  EXPECT_EQ(message<InputError>([] {
              MeshLayout::fit({{"dp", 2}}, {"dp", "dp"}, 4);
            }),
            "mesh dp=2 x dp=2: axis dp is named twice: name it once");
}

TEST(ParseMesh, ReadsSizesAndAuto) {
  using Sizes = std::map<std::string, int64_t>;
  EXPECT_EQ(parse_mesh("dp=2,tp=2,cp=auto"), (Sizes{{"dp", 2}, {"tp", 2}, {"cp", MeshLayout::kAuto}}));
  EXPECT_EQ(parse_mesh(" dp = 16384 , tp=1"), (Sizes{{"dp", 16384}, {"tp", 1}}));
}

TEST(ParseMesh, NamesTheOffendingPart) {
  const auto parse = [](const std::string& text) { return message<InputError>([&] { parse_mesh(text); }); };
  const std::string form = " is not an axis and its size, as in dp=2,tp=2,cp=auto";
  const std::string number = ": the size of an axis is a whole number or auto, as in dp=2,tp=2,cp=auto";
  const std::string least = ": an axis has at least 1 rank: give a larger size, or auto";
  EXPECT_EQ(parse(""), "mesh '': ''" + form);
  EXPECT_EQ(parse("dp"), "mesh 'dp': 'dp'" + form);
  EXPECT_EQ(parse("=2"), "mesh '=2': '=2'" + form);
  EXPECT_EQ(parse("dp=2,"), "mesh 'dp=2,': ''" + form);
  EXPECT_EQ(parse("dp="), "mesh 'dp='" + number);
  EXPECT_EQ(parse("dp=two"), "mesh 'dp=two'" + number);
  EXPECT_EQ(parse("dp=2x"), "mesh 'dp=2x'" + number);
  EXPECT_EQ(parse("dp=2.5"), "mesh 'dp=2.5'" + number);
  EXPECT_EQ(parse("dp=0"), "mesh 'dp=0'" + least);
  EXPECT_EQ(parse("tp=2,dp=-4"), "mesh 'dp=-4'" + least);
  EXPECT_EQ(parse("dp=2,dp=4"), "mesh 'dp=2,dp=4': axis dp is named twice: name it once");
  EXPECT_EQ(parse("dp=99999999999999999999"),
            "mesh 'dp=99999999999999999999': that many ranks cannot be counted: make the axis smaller");
}

TEST(CompleteOrder, AxesThatAreLeftOutAreTheOutermost) {
  using Order = std::vector<std::string>;
  EXPECT_EQ(complete_order({"dp", "tp"}), (Order{"pp", "cp", "dp", "tp"}));
  EXPECT_EQ(complete_order({}), training_axes());
  EXPECT_EQ(complete_order({"tp", "cp", "dp"}), (Order{"pp", "tp", "cp", "dp"}));
  EXPECT_EQ(complete_order({"dp", "pp", "cp", "tp"}), (Order{"dp", "pp", "cp", "tp"}));
  EXPECT_EQ(message<InputError>([] { complete_order({"dp", "dp"}); }), "names dp more than once: name each axis once");
  EXPECT_EQ(message<InputError>([] { complete_order({"dp", "ep"}); }), "names ep, but the axes are pp, dp, cp, tp");
}

}  // namespace
}  // namespace meshtrain

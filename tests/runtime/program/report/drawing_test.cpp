#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/program/report/chart.h"
#include "runtime/program/report/html.h"
#include "runtime/program/report/mesh_grid.h"
#include "runtime/program/report/ticks.h"
#include "tests/support/messages.h"

namespace meshtrain {
namespace {

using testing::has;
using Ticks = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_ticks(const Scale& scale, const Ticks& ticks) {
  ASSERT_EQ(scale.ticks.size(), ticks.size());
  for (size_t i = 0; i < ticks.size(); ++i) EXPECT_NEAR(scale.ticks[i], ticks[i], 1e-9 * std::abs(ticks[i])) << i;
}

TEST(Ticks, OfLinearScalesAreRound) {
  expect_ticks(linear_scale(0, 10, 5), {0, 2, 4, 6, 8, 10});
  expect_ticks(linear_scale(1.63, 5.51, 5), {1, 2, 3, 4, 5, 6});
  expect_ticks(linear_scale(-0.3, 0.7, 5), {-0.4, -0.2, 0, 0.2, 0.4, 0.6, 0.8});
  expect_ticks(linear_scale(0, 3e-5, 3), {0, 1e-5, 2e-5, 3e-5});
  expect_ticks(linear_scale(0, 600 << 20, 5, ValueUnit::Bytes),
               {0, 128 << 20, 256 << 20, 384 << 20, 512 << 20, 640 << 20});
}

TEST(Ticks, LinearScalesHoldTheirValues) {
  for (const auto& [least, most] : std::vector<std::pair<double, double>>{{3, 3},
                                                                          {0, 0},
                                                                          {5, 1},
                                                                          {-2, -2},
                                                                          {1e-300, 2e-300},
                                                                          {-1e308, 1e308},
                                                                          {kNan, kNan},
                                                                          {0, kInfinity},
                                                                          {1e15, 1e15 + 1},
                                                                          {1, 1 + 1e-15}}) {
    const Scale scale = linear_scale(least, most, 5);
    EXPECT_TRUE(std::isfinite(scale.from) && std::isfinite(scale.to) && scale.from < scale.to) << least << " " << most;
    EXPECT_GE(scale.ticks.size(), 2u) << least << " " << most;
    EXPECT_LE(scale.ticks.size(), 100u);
    if (std::abs(least) < 1e300 && std::abs(most) < 1e300) {
      EXPECT_GE(scale.position(least), -1e-6) << least << " " << most;
      EXPECT_LE(scale.position(most), 1 + 1e-6) << least << " " << most;
    }
  }
}

TEST(Ticks, OfLogarithmicScales) {
  expect_ticks(log_scale(0.12, 31, 5), {0.1, 1, 10, 100});
  expect_ticks(log_scale(1, 9, 5), {1, 2, 5, 10});
  expect_ticks(log_scale(1e-12, 1, 4), {1e-12, 1e-9, 1e-6, 1e-3, 1});
  EXPECT_NEAR(log_scale(0.1, 1000, 5).position(10), 0.5, 1e-12);
  EXPECT_LT(log_scale(1, 1, 5).from, log_scale(1, 1, 5).to);
}

TEST(Ticks, OfStepsAreWholeNumbers) {
  expect_ticks(step_scale(1, 4, 6), {1, 2, 3, 4});
  expect_ticks(step_scale(1, 500, 6), {100, 200, 300, 400, 500});
  EXPECT_EQ(step_scale(7, 7, 6).to, 8);
}

TEST(Numbers, AreWrittenShort) {
  EXPECT_EQ(text_of(0), "0");
  EXPECT_EQ(text_of(1.23456), "1.23");
  EXPECT_EQ(text_of(0.000012345), "1.23e-05");
  EXPECT_EQ(text_of(7608.4), "7608");
  EXPECT_EQ(text_of(12345), "12.3k");
  EXPECT_EQ(text_of(2048000), "2.05M");
  EXPECT_EQ(text_of(kNan), "-");
  EXPECT_EQ(text_of(700.0 * (1 << 20), ValueUnit::Bytes), "700 MiB");
  EXPECT_EQ(text_of(512, ValueUnit::Bytes), "512 B");
  EXPECT_EQ(text_of(0.382, ValueUnit::Percent), "38.2 %");
  EXPECT_EQ(text_of(0.0035, ValueUnit::Seconds), "3.5 ms");
  EXPECT_EQ(text_of(7265, ValueUnit::Seconds), "2:01:05");
  EXPECT_EQ(text_of(3.2e13, ValueUnit::Flops), "32 TFLOP/s");
  EXPECT_EQ(text_of(1e300, ValueUnit::Seconds), "1e+300 s");
}

TEST(Html, IsEscaped) {
  EXPECT_EQ(escaped("<a href=\"x\" title='y'>&</a>"), "&lt;a href=&quot;x&quot; title=&#39;y&#39;&gt;&amp;&lt;/a&gt;");
  EXPECT_EQ(escaped("caf\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80"), "caf\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80");
  const std::string replaced = "\xef\xbf\xbd";
  EXPECT_EQ(escaped("a\xff\x1b[2J\xc3"), "a" + replaced + replaced + "[2J" + replaced);
  EXPECT_EQ(escaped("\xed\xa0\x80"), replaced + replaced + replaced) << "half of a pair of UTF-16";
  EXPECT_EQ(escaped(std::string("\0", 1)), replaced);
  EXPECT_EQ(escaped("\xc0\x80"), replaced + replaced) << "an overlong zero";
}

Chart chart_of(const Series& series) {
  return {"Loss", "", ValueUnit::None, {{"<run>", 0, &series}}};
}

TEST(Charts, AGapWhereAValueIsNotFinite) {
  Series series;
  for (const double value : {1.0, 2.0, kNan, 3.0}) series.add(series.last_step() + 1, value);
  const std::string html = draw(chart_of(series), {0, 3});
  EXPECT_TRUE(has(html, "class=\"line\" d=\"M0 1000L333.3 500M1000 0\"")) << html;
  EXPECT_TRUE(has(html, "\"x\":[0,1,3],\"y\":[1,2,3]")) << html;
}

TEST(Charts, NamesCannotLeaveTheirPlace) {
  Series series;
  series.add(1, 1);
  Chart chart = chart_of(series);
  chart.curves[0].label = "</script><script>alert(1)</script>";
  chart.title = "<b>\"";
  chart.marks = {{1, "<i>"}};
  const std::string html = draw(chart, {0, 3});
  EXPECT_FALSE(has(html, "<script>")) << html;
  EXPECT_FALSE(has(html, "<b>\"")) << html;
  EXPECT_FALSE(has(html, "<title><i>")) << html;
}

TEST(Charts, WithoutValuesAreLeftOut) {
  Series series;
  EXPECT_EQ(draw(chart_of(series), {0, 3}), "");
  series.add(1, kNan);
  EXPECT_EQ(draw(chart_of(series), {0, 3}), "");
  EXPECT_EQ(draw_stacked("", "", ValueUnit::Seconds, {}, 1, {}, {0, 3}), "");
}

TEST(Charts, AThinnedSeriesHasABandFromLeastToMost) {
  Series series;
  for (int64_t step = 0; step < 2 * Series::kMostColumns; ++step) series.add(step, step % 2 == 0 ? 0 : 10);
  const std::string html = draw(chart_of(series), {0, 2.0 * Series::kMostColumns});
  EXPECT_TRUE(has(html, "class=\"band\" d=\"M0.2 0L")) << html.substr(0, 2000);
  EXPECT_TRUE(has(html, "class=\"line\" d=\"M0.2 500L")) << "the mean";
}

TEST(Charts, LayersLieOnEachOther) {
  const std::string html =
      draw_stacked("Time", "", ValueUnit::Seconds, {{"a", 0, {1, 1}}, {"b", 1, {1, kNan}}}, 1, {}, {0, 1});
  EXPECT_TRUE(has(html, "<g class=\"c0\"><path class=\"layer\" d=\"M0 500L0 1000Z\"/></g>")) << html;
  EXPECT_TRUE(has(html, "<g class=\"c1\"><path class=\"layer\" d=\"M0 0L0 500Z\"/></g>")) << html;
}

TEST(MeshGrid, NamesRankCoordinateAndHost) {
  const std::string html =
      draw_mesh_grid({{"dp", 2}, {"cp", 2}, {"tp", 2}}, {"a", "a", "a", "a", "<b>", "<b>", "<b>", "<b>"});
  EXPECT_TRUE(has(html, "<title>rank 6: dp=1 cp=1 tp=0, &lt;b&gt;</title>")) << html;
  EXPECT_TRUE(has(html, "<tr><td>dp</td><td>4 of 2 ranks</td><td>4 across hosts, up to 2</td></tr>")) << html;
  EXPECT_TRUE(has(html, "<tr><td>tp</td><td>4 of 2 ranks</td><td>each within a host</td></tr>")) << html;
}

TEST(MeshGrid, TakesAnyMesh) {
  EXPECT_EQ(draw_mesh_grid({}, {}), "");
  EXPECT_TRUE(has(draw_mesh_grid({{"dp", 1}}, {"a"}), "<title>rank 0: dp=0, a</title>"));
  EXPECT_TRUE(has(draw_mesh_grid({{"dp", 2}}, {"a"}), "does not say which hosts"));
  const std::string large = draw_mesh_grid({{"dp", 512}, {"cp", 4}, {"tp", 8}}, {});
  EXPECT_TRUE(has(large, "4,096 ranks of 16,384 are drawn")) << large.substr(large.size() - 600);
  EXPECT_LT(large.size(), size_t{1} << 20);
  EXPECT_TRUE(has(draw_mesh_grid({{"dp", 1}, {"tp", 100'000}}, {}), "4,096 ranks of 100,000 are drawn"));
}

}  // namespace
}  // namespace meshtrain

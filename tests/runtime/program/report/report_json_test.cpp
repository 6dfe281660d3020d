#include "runtime/program/report/report_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/program/report/page.h"
#include "tests/support/messages.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::has;

json first_run(const RunRecord& run) {
  return json::parse(report_json({&run})).at("runs").at(0);
}

RunRecord run_with(const std::vector<std::string>& lines) {
  RunRecord run;
  for (const std::string& line : lines) run.metrics.add(line);
  return run;
}

TEST(ReportJson, ACurveHasAGapWhereAValueIsNotFinite) {
  const json run =
      first_run(run_with({R"({"step":1,"loss":1})", R"({"step":2,"loss":2.123456})", R"({"step":3,"loss":null})",
                          R"({"step":5,"loss":3})", R"({"step":9,"mfu":1})"}));
  const json loss = {
      {"width", 1}, {"average", 2.0412}, {"columns", {1, 2, 5}}, {"mean", {1, 2.1235, 3}}, {"gaps", {2}}};
  EXPECT_EQ(run.at("series").at("loss"), loss) << "a step without a line, such as 4, is not a gap";
  EXPECT_EQ(run.at("steps"), json::array({1, 9}));
}

TEST(ReportJson, HasTheSeriesThatThePageDrawsAndHaveValues) {
  const json run =
      first_run(run_with({R"({"step":1,"loss":1,"grad_norm":null,"tokens":4,"bytes":{"dp":3},"list":[1]})"}));
  EXPECT_EQ(run.at("series").size(), 2u) << run;
  EXPECT_TRUE(run.at("series").contains("loss") && run.at("series").contains("bytes.dp")) << run;
  EXPECT_TRUE(first_run(RunRecord()).at("series").empty());
}

TEST(ReportJson, AThinnedCurveHasItsLeastAndMost) {
  RunRecord run;
  for (int64_t step = 0; step < 2 * Series::kMostColumns; ++step) {
    run.metrics.add("{\"step\":" + std::to_string(step) + ",\"loss\":" + (step % 2 == 0 ? "0" : "10") + "}");
  }
  const json loss = first_run(run).at("series").at("loss");
  EXPECT_EQ(loss.at("width"), 2);
  for (const char* values : {"columns", "mean", "least", "most"}) {
    EXPECT_EQ(loss.at(values).size(), static_cast<size_t>(Series::kMostColumns)) << values;
  }
  EXPECT_EQ(loss.at("least")[7], 0);
  EXPECT_EQ(loss.at("mean")[7], 5);
  EXPECT_EQ(loss.at("most")[7], 10);
}

TEST(ReportJson, PartsOfAStepHaveNoValueWhereThereIsNoStep) {
  const json time = first_run(run_with({R"({"step":1,"step_seconds":1,"seconds":{"data":0.25}})",
                                        R"({"step":3,"step_seconds":1,"seconds":{"data":0.75}})"}))
                        .at("time");
  const json data = {{"label", "data"}, {"mean", 0.5}, {"share", 0.5}, {"values", {nullptr, 0.25, nullptr, 0.75}}};
  EXPECT_EQ(time.at("width"), 1);
  EXPECT_EQ(time.at("parts").at(1), data);
}

TEST(ReportJson, HostsAreNumberedInTheOrderOfTheirRanks) {
  RunRecord run;
  run.mesh = {{"dp", 2}, {"tp", 2}};
  run.hosts = {"b", "b", "a", "b"};
  EXPECT_EQ(first_run(run).at("mesh"), json::parse(R"([["dp",2],["tp",2]])"));
  EXPECT_EQ(first_run(run).at("hosts"), json::parse(R"({"names":["b","a"],"of_ranks":[0,0,1,0]})"));
}

TEST(ReportJson, StartsSayHowTheyEnded) {
  RunRecord run;
  run.starts.resize(5);
  run.starts[0].how = RunStart::End::Interrupted;
  run.starts[1].how = RunStart::End::Stopped;
  run.starts[2].how = RunStart::End::Failed;
  run.starts[2].failures = {{3, "killed", "rank 3 is gone", 241}};
  run.starts[3].how = RunStart::End::Done;
  run.starts[3].changes = {"train.steps: 20, was 10"};
  const char* const endings[] = {"interrupted", "stopped on request", "failed: rank 3, killed, in step 241", "done",
                                 "no end yet"};
  const json starts = first_run(run).at("starts");
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(starts[i].at("ended"), endings[i]);
  EXPECT_EQ(starts[3].at("changes").at(0), "train.steps: 20, was 10");
}

TEST(ReportJson, SeveralRunsHaveTheDifferencesOfTheirRecipes) {
  RunRecord one, other;
  one.recipe = {{"train.steps", "60"}, {"train.seed", "42"}};
  other.recipe = {{"train.steps", "90"}, {"train.seed", "42"}};
  const json report = json::parse(report_json({&one, &other}, 7));
  EXPECT_EQ(report.at("differences"), json::parse(R"([["train.steps","60","90"]])"));
  EXPECT_EQ(report.at("runs").at(1).at("recipe").at(0), json::parse(R"(["train.steps","90"])"));
  EXPECT_EQ(report.at("version"), 7);
}

// A browser ends a script element at "</script", and reads it differently after "<!--".
TEST(ReportJson, MayStandInAScriptElement) {
  RunRecord run;
  run.name = "</script><script>alert(1)</script><!--";
  run.problems = {"\xff\x1b[2J \xe4\xb8\xad"};
  run.metrics.add(R"({"step":1,"bytes":{"</script>":4}})");
  const std::string text = report_json({&run});
  for (const char c : text) EXPECT_TRUE(c >= ' ' && c < 0x7f && c != '<') << text;
  EXPECT_EQ(first_run(run).at("name"), run.name);
  EXPECT_EQ(first_run(run).at("problems").at(0), "\xef\xbf\xbd\x1b[2J \xe4\xb8\xad");
}

TEST(Page, HoldsItsReportAndMayAskNobodyElse) {
  const std::string page = make_page("{\"runs\":7}"), live = make_page("{}", /*follows=*/true);
  EXPECT_TRUE(has(page, "<script type=\"application/json\" id=\"report\">{\"runs\":7}</script>")) << page;
  EXPECT_TRUE(has(page, "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"));
  EXPECT_TRUE(has(page, "connect-src 'none'\">"));
  EXPECT_TRUE(has(live, "connect-src 'self'\">"));
  EXPECT_TRUE(has(page, "prefers-color-scheme: dark") && has(page, "'use strict'")) << "its style and script";
  for (const char* other : {" src=", "href=\"page", "{{", "@import", "url("}) EXPECT_FALSE(has(page, other)) << other;
}

}  // namespace
}  // namespace meshtrain

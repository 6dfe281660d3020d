// The record of a run directory for a report: starts and their ends, recipe, metrics.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "runtime/program/report/facts.h"
#include "runtime/program/report/page.h"
#include "runtime/program/report/report_json.h"
#include "runtime/program/report/run_record.h"
#include "runtime/program/report/summary.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::write_file;
using Lines = std::vector<std::string>;

// ---- events

constexpr const char* kEvents =
    R"({"time":1000,"event":"started","version":"0.1.0","name":"mine","mesh":{"dp":2,"cp":2,"tp":2},"ranks":8,"hosts":["a","b"],"step":0,"steps":20,"parameters":3213568,"trained_parameters":3213568}
{"time":1061,"event":"checkpoint","step":4,"folder":"checkpoints/step-00000004","seconds":1.94}
{"time":1120,"event":"rank_failed","cause":"killed","rank":3,"coordinate":{"dp":0,"cp":1,"tp":1},"host":"a","phase":{"kind":"step","text":"step 8, vote"},"step":8,"message":"rank 3 is gone"}
{"time":1121,"event":"rank_failed","cause":"killed","rank":3,"message":"rank 3 is gone, says another host"}
{"time":4000,"event":"started","mesh":{"dp":4,"cp":1,"tp":2},"ranks":8,"step":4,"steps":20,"parameters":3213568,"trained_parameters":64}
{"time":4001,"event":"resumed","step":4,"folder":"checkpoints/step-00000004","seconds":0.2,"changes":["parallel.mesh.dp: 4, was 2","train.steps: 20, was 10"]}
{"time":4003,"event":"stopped","step":9,"why":"signal","signal":"SIGUSR1"}
{"time":8000,"event":"started","mesh":{"dp":4,"cp":1,"tp":2},"ranks":8,"step":9,"steps":20,"parameters":3213568,"trained_parameters":64}
{"time":8001,"event":"resumed","step":9,"folder":"checkpoints/step-00000009","seconds":0.2,"changes":[]}
{"time":8002,"event":"of a later version","step":[1]}
{"time":8009,"event":"done","step":20}
)";

template <class Reader>
Reader read_lines(const std::string& text) {
  Reader reader;
  size_t begin = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    reader.add(std::string_view(text).substr(begin, end - begin));
  }
  return reader;
}

std::vector<RunStart> starts_in(const std::string& events, const std::string& ledger = "") {
  return starts_of(read_lines<RunEvents>(events), read_lines<Ledger>(ledger));
}

TEST(RunEvents, TellStartsAndTheirEnds) {
  const RunEvents events = read_lines<RunEvents>(kEvents);
  EXPECT_EQ(events.num_damaged(), 0);
  ASSERT_EQ(events.checkpoints().size(), 1u);
  EXPECT_EQ(events.checkpoints()[0].step, 4);
  EXPECT_EQ(events.checkpoints()[0].seconds, 1.94);
  const std::vector<RunStart> starts = starts_of(events, Ledger());
  ASSERT_EQ(starts.size(), 3u);
  const RunStart &first = starts[0], &second = starts[1], &third = starts[2];
  EXPECT_EQ(first.how, RunStart::End::Failed);
  EXPECT_EQ(first.mesh, "dp=2,cp=2,tp=2");
  EXPECT_EQ(first.model, "3,213,568 parameters");
  EXPECT_EQ(first.end - first.begin, 121);
  ASSERT_EQ(first.failures.size(), 1u) << "both hosts have reported one failure";
  EXPECT_EQ(first.failures[0].message, "rank 3 is gone");
  EXPECT_EQ(reason_of(first), ": rank 3, killed, in step 8");
  EXPECT_EQ(second.how, RunStart::End::Stopped);
  EXPECT_EQ(second.model, "3,213,568 parameters (64 of them trained)");
  EXPECT_EQ(second.resumed_after, 4);
  EXPECT_EQ(second.last_step, 9);
  EXPECT_EQ(second.changes, Lines({"parallel.mesh.dp: 4, was 2", "train.steps: 20, was 10"}));
  EXPECT_EQ(third.how, RunStart::End::Done);
  EXPECT_EQ(third.last_step, 20);
  EXPECT_EQ(meshes_of(starts), "dp=2,cp=2,tp=2 (steps 1 to 4), then dp=4,cp=1,tp=2 (from step 5)");
}

TEST(RunEvents, AStartWithoutAnEndIsOpenOrInterrupted) {
  const std::string start = R"({"time":1,"event":"started","mesh":{"dp":1},"step":0})"
                            "\n";
  EXPECT_EQ(starts_in(start)[0].how, RunStart::End::Open);
  const std::vector<RunStart> starts = starts_in(start + start);
  EXPECT_EQ(starts[0].how, RunStart::End::Interrupted);
  EXPECT_EQ(starts[1].how, RunStart::End::Open);
  EXPECT_EQ(meshes_of(starts), "dp=1");
}

TEST(RunEvents, AFailureBeforeTheStartIsAStartOfItsOwn) {
  const std::string failed =
      R"({"time":9000,"event":"rank_failed","cause":"killed","rank":1,"phase":{"kind":"resume","text":"the resume"},"message":"m"})"
      "\n";
  const std::vector<RunStart> starts = starts_in(kEvents + failed + failed);
  ASSERT_EQ(starts.size(), 4u);
  EXPECT_EQ(starts[2].how, RunStart::End::Done);
  EXPECT_EQ(starts[3].how, RunStart::End::Failed);
  EXPECT_FALSE(starts[3].has_begun);
  EXPECT_EQ(starts[3].failures.size(), 1u);
}

TEST(RunEvents, ALossOrAStallMayEnd) {
  const std::string start = R"({"time":1,"event":"started","mesh":{"dp":2},"step":0})"
                            "\n";
  const std::string lost = R"({"time":2,"event":"rank_failed","cause":"network","rank":1,"message":"m"})"
                           "\n";
  EXPECT_EQ(starts_in(start + lost)[0].how, RunStart::End::Failed);
  const RunStart again = starts_in(start + lost +
                                   R"({"time":3,"event":"rank_answers","rank":1})"
                                   "\n")[0];
  EXPECT_EQ(again.how, RunStart::End::Open);
  EXPECT_TRUE(again.failures.empty());
  const std::string stall = R"({"time":2,"event":"stalled","cause":"stopped","rank":1,"message":"m"})"
                            "\n";
  EXPECT_EQ(starts_in(start + stall)[0].stalls.at(0).cause, "stopped");
  EXPECT_TRUE(starts_in(start + stall +
                        R"({"time":3,"event":"stall_ended","seconds":1})"
                        "\n")[0]
                  .stalls.empty());
}

TEST(RunEvents, DamagedLinesChangeNothing) {
  const RunEvents events = read_lines<RunEvents>(
      "{\n[1]\n{\"event\":3}\n{\"time\":1,\"event\":\"done\",\"step\":4}\n"
      "{\"event\":\"started\",\"mesh\":[1],\"step\":-4,\"steps\":\"x\",\"time\":null}\n"
      "{\"event\":\"resumed\",\"changes\":[1,{}]}\n{\"event\":\"rank_failed\",\"rank\":\"x\",\"phase\":3}\n");
  EXPECT_EQ(events.num_damaged(), 3);
  const std::string deep =
      "{\"event\":\"done\",\"step\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(read_lines<RunEvents>(deep + "\n").num_damaged(), 1) << "the parser would overflow its stack";
  ASSERT_EQ(events.starts().size(), 1u);
  EXPECT_EQ(events.starts()[0].mesh, "");
  EXPECT_EQ(events.starts()[0].last_step, 0);
  EXPECT_EQ(events.starts()[0].failures.at(0).rank, -1);
}

TEST(RunStarts, TheLedgerKnowsTheLastStepAndEarlierVersions) {
  const std::string ledger =
      R"({"start":500,"end":600,"mesh":"dp=8","from_step":0,"to_step":3,"ended":"killed","seconds":{"training":1}}
{"start":990,"end":1119,"mesh":"dp=2,cp=2,tp=2","from_step":3,"to_step":7,"ended":"killed","seconds":{"training":1}}
{"start":3990,"end":4005,"mesh":"dp=4,cp=1,tp=2","from_step":4,"to_step":9,"ended":"stopped","seconds":{"training":1}}
)";
  const std::vector<RunStart> starts = starts_in(kEvents, ledger);
  ASSERT_EQ(starts.size(), 4u);
  EXPECT_EQ(starts[0].mesh, "dp=8");
  EXPECT_EQ(starts[0].last_step, 3);
  EXPECT_EQ(starts[0].how, RunStart::End::Interrupted);
  EXPECT_EQ(starts[1].last_step, 7);
  EXPECT_EQ(starts[1].how, RunStart::End::Failed);
  EXPECT_EQ(starts[2].end, 4005);
  EXPECT_EQ(starts[3].how, RunStart::End::Done);
}

TEST(RunStarts, MeshesAreNamedWithTheStepsThatCount) {
  const auto on = [](const std::string& mesh, int64_t after) {
    RunStart start;
    start.mesh = mesh;
    start.resumed_after = after;
    return start;
  };
  EXPECT_EQ(meshes_of({}), "");
  EXPECT_EQ(meshes_of({on("dp=2", 0), on("dp=2", 40)}), "dp=2");
  EXPECT_EQ(meshes_of({on("dp=2", 0), on("tp=2", 40), on("dp=2", 1500)}),
            "dp=2 (steps 1 to 40), then tp=2 (steps 41 to 1,500), then dp=2 (from step 1,501)");
  EXPECT_EQ(meshes_of({on("dp=2", 0), on("tp=2", 40), on("cp=2", 40)}),
            "dp=2 (steps 1 to 40), then cp=2 (from step 41)")
      << "no step of tp=2 is left";
  EXPECT_EQ(meshes_of({on("dp=2", 0), on("tp=2", 1), on("", 2)}), "dp=2 (step 1), then tp=2 (from step 2)");
}

// ---- the ledger

TEST(Ledger, AddsUpToTheWallTime) {
  Ledger ledger;
  ledger.add(
      R"({"start":1000,"end":1100,"ranks":8,"mesh":"dp=8","from_step":1,"to_step":50,"ended":"killed","seconds":{"start_up":10,"training":80,"lost":10}})");
  ledger.add(R"({"start":1150,"end":1160,"seconds":{"start_up":10}})");
  ledger.add(R"({"start":1150,"end":1250,"seconds":{"start_up":10,"training":70,"checkpoint":20}})");
  ledger.add("{\"start\":");
  ledger.add(R"({"start":"x","end":-4,"ranks":1e300,"seconds":[1]})");
  EXPECT_EQ(ledger.num_damaged(), 1);
  EXPECT_EQ(ledger.starts().size(), 3u) << "a line of the same start replaces the one before";
  EXPECT_EQ(ledger.wall_seconds(), 250);
  const std::vector<std::pair<std::string, double>> parts = {
      {"training", 150}, {"checkpoint", 20}, {"start_up", 20}, {"lost", 10}, {"idle", 50}};
  EXPECT_EQ(ledger.parts(), parts);
}

// ---- run directories

class RunFolder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { write_file(run / name, text); }
  std::string page(RunReader& reader) const {
    reader.refresh();
    return make_page(report_json({&reader.record()}));
  }

  ScratchFolder folder;
  std::filesystem::path run = folder.path() / "mine";
};

TEST_F(RunFolder, HasEpInItsMeshAndNotAmongTheFactorsOfItsRanks) {
  write("decisions.yaml", "mesh:\n  dp: 2\n  cp: 1\n  tp: 2\n  ep: 4\n");
  write("metrics.jsonl", "{\"step\":1,\"loss\":3}\n");
  RunReader reader(run);
  EXPECT_TRUE(reader.refresh());
  EXPECT_EQ(reader.record().meshes_text(), "mesh dp=2,cp=1,tp=2,ep=4, 4 ranks");
}

TEST_F(RunFolder, IsReadWhole) {
  write("recipe.yaml", "name: mine\ntrain:\n  steps: 20\ndata:\n  mixture:\n    - {tokens: a}\n    - {tokens: b}\n");
  write("decisions.yaml", "mesh:\n  dp: 2\n  cp: 2\n  tp: 2\n");
  write("hosts.json", R"({"hosts":["a","a","a","a","b","b","b","b"]})");
  write("console.log", "2026-03-01 10:00:01.000 warning: something <odd>\n");
  write("events.jsonl", kEvents);
  write("metrics.jsonl", "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2.5}\n{\"step\":3,\"lo");
  write("checkpoints/step-00000004/manifest.json", "{}");
  write("checkpoints/step-00000004/rank-00000.safetensors", "12345");
  write("checkpoints/abandoned-step-00000007-2/manifest.json", "{}");
  write("checkpoints/step-00000008.abcd.tmp/manifest.json", "{}");
  write("checkpoints/step-00000005/rank-00000.safetensors", "it is being removed");
  write("checkpoints/run-0123", "");
  write("flight/rank-0.jsonl", "");
  write("forecast.json",
        R"({"rank":0,"planned":{"memory_bytes":1048576,"memory_by_part":{"optimizer":524288},"sent_bytes":0,)"
        R"("seconds":0.5,"seconds_by_part":{"products":0.4},"exposed_seconds":{"tp":0.1}},)"
        R"("measured":{"memory_bytes":2097152,"sent_bytes":0,"seconds":0.4}})");
  RunReader reader(run);
  EXPECT_TRUE(reader.refresh());
  EXPECT_FALSE(reader.refresh());
  const RunRecord& record = reader.record();
  EXPECT_EQ(record.problems, Lines());
  EXPECT_EQ(record.metrics.last_step(), 2) << "the third line is not complete";
  EXPECT_EQ(record.num_steps(), 20);
  EXPECT_EQ(record.num_ranks(), 8);
  EXPECT_EQ(record.mesh_text(), "dp=2,cp=2,tp=2");
  EXPECT_EQ(record.recipe_value("data.mixture[1].tokens"), "b");
  ASSERT_EQ(record.checkpoints.size(), 2u);
  EXPECT_EQ(record.checkpoints[0].step, 4);
  EXPECT_EQ(record.checkpoints[0].bytes, 7);
  EXPECT_EQ(record.checkpoints[0].num_files, 1);
  EXPECT_TRUE(record.checkpoints[1].abandoned);
  EXPECT_EQ(record.flight.size(), 1u);
  EXPECT_EQ(num_interruptions(record), 1);
  EXPECT_EQ(state_of(record), "done");
  EXPECT_EQ(record.meshes_text(), "meshes dp=2,cp=2,tp=2 (steps 1 to 4), then dp=4,cp=1,tp=2 (from step 5)");
  ASSERT_TRUE(record.forecast);
  EXPECT_EQ(record.forecast->memory, (ForecastRecord::Pair{1048576, 2097152}));
  const std::vector<ForecastLine> lines = compare(*record.forecast, record.metrics);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0].difference, "-50.0 %");
  EXPECT_EQ(lines[1].label + ": " + lines[1].planned, "  optimizer: 512 KiB");
  EXPECT_EQ(lines[3].difference, "+25.0 %");
  EXPECT_EQ(lines[5].label + ": " + lines[5].measured, "  waits for tp: -") << "metrics do not have it";
  for (const std::string& text : {page(reader), summary_text({&record})}) {
    EXPECT_TRUE(has(text, "+25.0 %")) << text;
  }
  std::ofstream(run / "metrics.jsonl", std::ios::app) << "ss\":2}\n";
  EXPECT_TRUE(reader.refresh());
  EXPECT_EQ(record.metrics.last_step(), 3);
}

TEST_F(RunFolder, OlderNamesOfFilesAreReadWhenTheNewAreMissing) {
  write("recipe.yaml", "name: mine\n");
  write("plan.yaml", "mesh:\n  dp: 2\n");
  write("plan.json", R"({"rank":0,"planned":{"memory_bytes":1024,"sent_bytes":0}})");
  write("log.txt", "2026-03-01 10:00:01.000 warning: something\n");
  RunReader reader(run);
  reader.refresh();
  const RunRecord& record = reader.record();
  EXPECT_EQ(record.problems, Lines());
  EXPECT_EQ(record.num_ranks(), 2);
  EXPECT_EQ(record.warnings.lines().size(), 1u);
  ASSERT_TRUE(record.forecast);
  EXPECT_EQ(record.forecast->memory.planned, 1024);
  write("decisions.yaml", "mesh:\n  dp: 4\n");
  write("forecast.json", R"({"rank":0,"planned":{"memory_bytes":2048,"sent_bytes":0}})");
  EXPECT_TRUE(reader.refresh());
  EXPECT_EQ(record.num_ranks(), 4);
  EXPECT_EQ(record.forecast->memory.planned, 2048);
}

TEST_F(RunFolder, DamagedFilesAreProblemsAndNoMore) {
  write("recipe.yaml", "train: [");
  write("decisions.yaml", "mesh:\n  dp: 99999999999\n");
  write("hosts.json", "{\"hosts\":[1]}");
  write("metrics.jsonl", "garbage\n{\"step\":1,\"loss\":2}\n");
  write("goodput.jsonl", "{\n");
  write("events.jsonl", "{\n");
  write("forecast.json", "{\"planned\":3}");
  write("checkpoints", "a file");
  std::filesystem::create_directory(run / "console.log");
  RunReader reader(run);
  reader.refresh();
  const Lines& problems = reader.record().problems;
  for (const char* problem : {"recipe.yaml", "decisions.yaml: mesh: 99999999999", "forecast.json", "hosts.json",
                              "1 damaged line of metrics.jsonl", "1 damaged line of goodput.jsonl",
                              "1 damaged line of events.jsonl", "checkpoints", "console.log"}) {
    const auto says = [&](const std::string& line) { return line.starts_with(problem); };
    EXPECT_TRUE(std::any_of(problems.begin(), problems.end(), says)) << problem;
  }
  EXPECT_EQ(reader.record().metrics.last_step(), 1);
  EXPECT_FALSE(summary_text({&reader.record()}).empty());
  EXPECT_EQ(nlohmann::json::parse(report_json({&reader.record()})).at("runs").at(0).at("problems"),
            nlohmann::json(problems));
}

TEST_F(RunFolder, WhatIsNoRunIsRefused) {
  EXPECT_EQ(message<InputError>([&] { RunReader reader(run); }), "there is no run directory " + run.string());
  write("other", "");
  EXPECT_TRUE(
      has(message<InputError>([&] { RunReader reader(run); }), "is not a run directory: it has no metrics.jsonl"));
  EXPECT_TRUE(
      has(message<InputError>([&] { RunReader reader(run / "other"); }), "is not a run directory: it is a file"));
}

TEST_F(RunFolder, SkippedOutliersAreNamed) {
  write("metrics.jsonl", R"({"step":1,"loss":2,"skipped":false})"
                         "\n"
                         R"({"step":2,"loss":9,"skipped":true,"outlier":"loss"})"
                         "\n"
                         R"({"step":3,"loss":null,"skipped":true,"non_finite":"head.weight"})"
                         "\n");
  RunReader reader(run);
  EXPECT_TRUE(has(page(reader), R"([2,"an outlier: loss"],[3,"head.weight"])"));
  const std::string summary = summary_text({&reader.record()});
  EXPECT_TRUE(has(summary, "skipped steps            2  (1 outlier)")) << summary;
}

TEST_F(RunFolder, TextOfFilesIsEscaped) {
  write("recipe.yaml", "name: \"<img src=x onerror=alert(1)>\"\n\"<key>\": \"\\x1b[2J\"\n");
  write("hosts.json", "{\"hosts\":[\"<script>alert(2)</script>\"]}");
  write("decisions.yaml", "mesh:\n  <dp>: 1\n");
  write("metrics.jsonl",
        R"({"step":1,"loss":1,"bytes":{"<script>alert(3)</script>":4},"skipped":true,"non_finite":"<script>"})"
        "\n");
  write("console.log", "2026-03-01 10:00:01.000 warning: <script>alert(4)</script>\n");
  write("events.jsonl",
        R"({"event":"started","mesh":{"<dp>":1},"step":0,"time":1,"parameters":1})"
        "\n"
        R"({"event":"resumed","changes":["<script>alert"],"time":1})"
        "\n"
        R"({"event":"rank_failed","rank":1,"cause":"<script>alert","message":"\u001b[2J<script>alert","time":1})"
        "\n");
  RunReader reader(run);
  const std::string html = page(reader);
  for (const char* part : {"<img", "<script>alert", "<key>", "<dp>", "\x1b"}) EXPECT_FALSE(has(html, part)) << part;
  EXPECT_FALSE(has(summary_text({&reader.record()}), "\x1b"));
}

TEST_F(RunFolder, AMillionStepsMakeASmallPage) {
  std::string lines;
  constexpr int kSteps = 200'000;
  for (int step = 1; step <= kSteps; ++step) {
    const std::string n = std::to_string(step % 977);
    lines += "{\"step\":" + std::to_string(5 * step) + ",\"loss\":" + n + ".25,\"grad_norm\":" + n +
             ",\"learning_rate\":1e-3,\"tokens\":" + n + ",\"step_seconds\":0." + n + ",\"tokens_per_second\":" + n +
             "}\n";
  }
  write("metrics.jsonl", lines);
  RunReader reader(run);
  EXPECT_LT(page(reader).size(), size_t{1} << 20);
  EXPECT_EQ(reader.record().metrics.last_step(), 5 * kSteps);
}

TEST(Recipes, AreDifferenced) {
  RunRecord one, other, third, unknown;
  one.recipe = {{"train.steps", "60"}, {"train.seed", "42"}, {"optimizer.name", "adamw"}};
  other.recipe = {{"train.steps", "90"}, {"train.seed", "42"}, {"model.bias", "true"}, {"optimizer.name", "adamw"}};
  third.recipe = one.recipe;
  const std::vector<RecipeDifference> differences = recipe_differences({&one, &other, &third, &unknown});
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].key, "train.steps");
  EXPECT_EQ(differences[0].values, Lines({"60", "90", "60", "?"}));
  EXPECT_EQ(differences[1].key, "model.bias");
  EXPECT_EQ(differences[1].values, Lines({"-", "true", "-", "?"}));
  EXPECT_TRUE(recipe_differences({&one, &third, &unknown}).empty());
}

}  // namespace
}  // namespace meshtrain

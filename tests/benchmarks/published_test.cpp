#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "runtime/program/published/known_shapes.h"
#include "runtime/program/published/software.h"
#include "runtime/program/published/text.h"
#include "runtime/program/recipe/load.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

const std::string kHeader =
    "id,source,model,system,gpus,dp,sharding,tp,cp,sequence,micro_batch,global_batch,precision,checkpointing,compiled,"
    "value,unit,memory_gib\n";
const std::string kRow =
    "a,torchtitan T1,llama3-8b-6-layers,h100,8,8,full_shard,1,1,8192,1,8,bf16_mixed,selective,yes,7000,tok/s/gpu,40\n";

std::vector<PublishedRun> read(const std::string& table) {
  const ScratchFolder folder;
  write_file(folder.path() / "runs.csv", table);
  return read_published_table(folder.path() / "runs.csv");
}

/// Returns the message of the error that reading `table` ends with, from the file's name on.
std::string complaint(const std::string& table) {
  try {
    read(table);
  } catch (const InputError& error) {
    const std::string text = error.what();
    return text.substr(text.find("runs.csv"));
  }
  return "";
}

/// Returns kRow with another cell in a column, counted from 0.
std::string row_with(size_t column, const std::string& cell, const std::string& row = kRow) {
  size_t begin = 0;
  for (size_t i = 0; i < column; ++i) begin = row.find(',', begin) + 1;
  const size_t end = row.find_first_of(",\n", begin);
  return row.substr(0, begin) + cell + row.substr(end);
}

TEST(PublishedTable, HasARunForEachRow) {
  const auto runs = read(kHeader + kRow + "\n" +
                         "b,\"a, \"\"quoted\"\" source\",llama2-7b,a100,16,2,hybrid_shard "
                         "8,4,2,4096,,,fp8,full,fused,,,out of memory\r\n");
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].global_batch, 8);
  EXPECT_EQ(runs[0].value, 7000);
  EXPECT_EQ(runs[0].memory_gib, 40);
  EXPECT_FALSE(runs[0].fits.has_value());
  EXPECT_EQ(runs[1].source, "a, \"quoted\" source");
  EXPECT_EQ(runs[1].sharding, "hybrid_shard");
  EXPECT_EQ(runs[1].shard_size, 8);
  EXPECT_FALSE(runs[1].micro_batch || runs[1].value || runs[1].memory_gib);
  EXPECT_EQ(runs[1].fits, false);
}

TEST(PublishedTable, SaysWhereItIsWrong) {
  const auto of_row = [](size_t column, const std::string& cell) {
    return complaint(kHeader + row_with(column, cell));
  };
  EXPECT_EQ(of_row(3, "v100"),
            "runs.csv:2: column system: \"v100\": expected one of a100, h100, h100-500w, h200, b200");
  EXPECT_EQ(of_row(2, "gpt2").rfind("runs.csv:2: column model: \"gpt2\": expected one of llama-7b, ", 0), 0u);
  EXPECT_EQ(of_row(4, "9"), "runs.csv:2: column gpus: \"9\": expected dp x tp x cp = 8");
  EXPECT_EQ(of_row(5, "8x"), "runs.csv:2: column dp: \"8x\": expected a whole number from 1 to 16384");
  EXPECT_EQ(of_row(11, "9"), "runs.csv:2: column global_batch: \"9\": expected a multiple of dp x micro_batch = 8");
  EXPECT_EQ(of_row(15, "-3"), "runs.csv:2: column value: \"-3\": expected a number above 0, or nothing");
  EXPECT_EQ(of_row(16, "steps"),
            "runs.csv:2: column unit: \"steps\": expected one of tok/s/gpu, s/step, TFLOP/s full, TFLOP/s causal");
  EXPECT_EQ(of_row(17, "much"),
            "runs.csv:2: column memory_gib: \"much\": expected a number of GiB, fits, out of memory, or nothing");
  EXPECT_EQ(complaint(kHeader + kRow + kRow), "runs.csv:3: column id: a is duplicated");
  EXPECT_EQ(complaint(kHeader + "a,b\n"), "runs.csv:2: 2 cells, and the first line names 18 columns");
  EXPECT_EQ(complaint(kHeader), "runs.csv: the table has no rows");
  EXPECT_EQ(complaint("id,source\n" + kRow), "runs.csv:1: missing column model");
  EXPECT_EQ(complaint("idd,source\n" + kRow).rfind("runs.csv:1: unknown column \"idd\": the columns are id, ", 0), 0u);
  EXPECT_EQ(complaint(kHeader + "\"a,b\n"), "runs.csv:2: a double quote is not closed");
}

/// Returns the number of parameters of a dense model.
int64_t parameters_of(const ModelShape& shape) {
  const int64_t h = shape.hidden_size, q = shape.num_attention_heads * shape.head_dim,
                kv = shape.num_key_value_heads * shape.head_dim;
  int64_t layer = 2 * h * q + 2 * h * kv + 3 * h * shape.intermediate_size + 2 * h;
  if (shape.family == "qwen2") layer += q + 2 * kv;
  if (shape.family == "qwen3") layer += 2 * shape.head_dim;
  return shape.num_hidden_layers * layer + h + (shape.tie_word_embeddings ? 1 : 2) * shape.vocab_size * h;
}

TEST(KnownShapes, HaveTheParametersOfTheirModels) {
  const auto parameters = [](const char* name) { return parameters_of(known_shape(name).value()); };
  EXPECT_EQ(parameters("llama2-7b"), 6738415616);
  EXPECT_EQ(parameters("llama2-13b"), 13015864320);
  EXPECT_EQ(parameters("llama2-70b"), 68976648192);
  EXPECT_EQ(parameters("llama3-8b"), 8030261248);
  EXPECT_EQ(parameters("llama3-70b"), 70553706496);
  EXPECT_EQ(parameters("llama3-405b"), 405853388800);
  EXPECT_EQ(parameters("llama3.2-1b"), 1235814400);
  EXPECT_EQ(parameters("llama3.2-3b"), 3212749824);
  EXPECT_EQ(parameters("mistral-7b"), 7241732096);
  EXPECT_EQ(parameters("qwen2.5-7b"), 7615616512);
  EXPECT_EQ(parameters("qwen2.5-0.5b"), 494032768);
  EXPECT_EQ(parameters("qwen3-8b"), 8190735360);
  EXPECT_EQ(parameters("qwen3-0.6b"), 596049920);
  EXPECT_EQ(parameters("smollm2-1.7b"), 1711376384);
  EXPECT_EQ(parameters("qwen3-32b"), 32762123264);
  EXPECT_NEAR(static_cast<double>(parameters("llama-3.57b")), 3.57e9, 0.01e9);
}

TEST(KnownShapes, MayHaveFewerLayers) {
  EXPECT_EQ(known_shape("llama3-70b-12-layers")->num_hidden_layers, 12);
  EXPECT_EQ(known_shape("llama3-70b-12-layers")->hidden_size, known_shape("llama3-70b")->hidden_size);
  EXPECT_FALSE(known_shape("llama3-70b-x-layers"));
  EXPECT_FALSE(known_shape("llama3-70b-0-layers"));
  EXPECT_FALSE(known_shape("gpt2"));
}

PublishedForecast forecast_of(const std::string& source, double seconds, double measured) {
  PublishedForecast forecast;
  forecast.run.source = source;
  forecast.run.gpus = forecast.run.dp = forecast.run.sequence = 1;
  forecast.micro_batch = forecast.micro_batches = 1;
  forecast.time.products = seconds;
  forecast.measured_seconds = measured;
  forecast.device_memory = int64_t{80} << 30;
  forecast.memory = 40.0 * (1 << 30);
  return forecast;
}

TEST(PublishedScore, IsOfAllRuns) {
  std::vector<PublishedForecast> forecasts = {forecast_of("a", 1, 1), forecast_of("a", 2.2, 2),
                                              forecast_of("a", 2.1, 3), forecast_of("b", 1, 1)};
  forecasts[0].run.memory_gib = 50;
  PublishedScore score = score_of(forecasts);
  EXPECT_EQ(score.rows, 4);
  EXPECT_NEAR(score.time_error_mean, (0.1 + 0.3) / 4, 1e-12);
  EXPECT_NEAR(score.time_error_worst, 0.3, 1e-12);
  EXPECT_NEAR(score.kendall_tau_mean, 1.0 / 3, 1e-12) << "one of three pairs is the wrong way round, and b has none";
  EXPECT_NEAR(score.memory_error_mean, 0.2, 1e-12);
  EXPECT_EQ(score.out_of_memory_total, 0);
  EXPECT_EQ(score.fitting_refused, 0);

  forecasts[1].run.fits = false;
  forecasts[2].run.fits = false;
  forecasts[2].memory = forecasts[3].memory = 79.0 * (1 << 30);
  score = score_of(forecasts);
  EXPECT_EQ(score.out_of_memory_total, 2);
  EXPECT_EQ(score.out_of_memory_named, 1) << "79 GiB and the runtime's own do not fit in 80";
  EXPECT_EQ(score.fitting_refused, 1);
}

TEST(PublishedScore, IsAnOrdersAgreement) {
  EXPECT_EQ(kendall_tau({1, 2, 3}, {10, 20, 30}), 1);
  EXPECT_EQ(kendall_tau({1, 2, 3}, {3, 2, 1}), -1);
  EXPECT_EQ(kendall_tau({1, 2}, {5, 5}), 0);
  EXPECT_NEAR(kendall_tau({1, 2, 2}, {1, 2, 3}), 2 / std::sqrt(6), 1e-12);
}

std::string joined(const std::vector<std::string>& rows) {
  std::string text = kHeader;
  for (const std::string& row : rows) text += row;
  return text;
}

/// Returns the predictions, without a fit, of kRow and of the same run with other cells.
std::vector<PublishedForecast> variants(std::vector<std::string> rows) {
  rows.insert(rows.begin(), kRow);
  return PublishedRuns(read(joined(rows))).predict({});
}

// The other source tells the rates that a source is predicted with; its own times tell nothing.
TEST(PublishedRuns, ArePredictedFromOtherSources) {
  const auto seconds = [](const std::string& of_a, const std::string& of_b) {
    const auto rows =
        PublishedRuns(read(joined({row_with(15, of_a), row_with(0, "b", row_with(1, "other", row_with(15, of_b)))})))
            .predict_each_from_others();
    return std::pair(rows[0].time.total(), rows[1].time.total());
  };
  const auto [a, b] = seconds("27000", "30000");
  const auto [a_faster, b_faster] = seconds("33000", "30000");
  EXPECT_EQ(a_faster, a);
  EXPECT_LT(b_faster, 0.99 * b);
}

RateObservation observation(const std::string& source, double residual, size_t rate) {
  RateObservation run{source, residual};
  run.slopes[rate] = -1;
  return run;
}

TEST(Rates, AreThoseThatExplainRuns) {
  std::vector<RateObservation> runs;
  for (const char* source : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
    runs.push_back(observation(source, std::log(0.9), 0));  // products take 0.9 of the time
  }
  const Rates rates = fitted_rates(runs);
  EXPECT_NEAR(rates.products, 1 / 0.9, 0.03);
  EXPECT_GT(rates.products, 1);
  EXPECT_EQ(rates.attention, 1) << "no run tells it";
  runs.push_back(observation("i", std::log(3), 0));
  EXPECT_NEAR(fitted_rates(runs).products, rates.products, 0.03) << "a run that something else holds up";
  for (int i = 0; i < 100; ++i) runs.push_back(observation("j", std::log(1.1), 0));
  EXPECT_GT(fitted_rates(runs).products, 0.93) << "a hundred runs of one source are not a hundred sources";
}

TEST(Rates, AreFactorsOfAMachine) {
  const Machine machine = *sourced_machine("h100"), preset = *machine_preset("h100");
  const Machine same = with_rates(machine, preset_rates());
  EXPECT_EQ(to_yaml(same), to_yaml(preset));
  for (const RateMember& member : kRateMembers) {
    Rates rates;
    rates.*member.factor = 0.5;
    EXPECT_NE(to_yaml(with_rates(machine, rates)), to_yaml(machine)) << member.name;
  }
  EXPECT_FALSE(sourced_machine("v100"));
}

TEST(PublishedRuns, DifferAsTheirProgramsAndSettingsDo) {
  const std::string fp8 = row_with(0, "b", row_with(12, "fp8")), eager = row_with(0, "c", row_with(14, "no")),
                    full = row_with(0, "d", row_with(13, "full")),
                    larger = row_with(0, "e", row_with(10, "2", row_with(11, "16")));
  const auto rows = variants({fp8, eager, full, larger});
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_NEAR(*rows[0].measured_seconds, 8192.0 / 7000, 1e-12);
  EXPECT_LT(rows[1].time.products, 0.75 * rows[0].time.products) << "but for the head";
  EXPECT_GT(rows[1].time.elementwise, rows[0].time.elementwise) << "casts to fp8";
  EXPECT_GT(rows[2].time.elementwise, 1.5 * rows[0].time.elementwise) << "eager";
  EXPECT_GT(rows[2].memory, rows[0].memory) << "eager keeps logits in fp32 too";
  EXPECT_GT(rows[3].time.products, rows[0].time.products) << "all of the forward again";
  EXPECT_LT(rows[3].memory, rows[0].memory);
  EXPECT_NEAR(rows[4].time.products / rows[0].time.products, 2, 0.05);
}

TEST(PublishedRuns, TakeTheLargestMicroBatchThatFits) {
  const auto rows = variants({row_with(0, "b", row_with(10, "", row_with(11, "64")))});
  EXPECT_GT(rows[1].micro_batch, 1);
  EXPECT_EQ(rows[1].micro_batch * rows[1].micro_batches, 8);
  EXPECT_TRUE(rows[1].fits());
  const auto stated = variants({row_with(0, "b", row_with(11, ""))});
  EXPECT_EQ(stated[1].micro_batches, 64) << "4 Mi tokens";
}

TEST(PublishedRuns, HoldMoreWithMoreLayersThoughUnitsTakeBuffersInTurns) {
  const std::string full = row_with(13, "full");
  const auto rows = variants(
      {row_with(0, "b", row_with(2, "llama3-70b-78-layers", full)), row_with(0, "c", row_with(2, "llama3-70b", full))});
  EXPECT_NEAR(rows[2].memory / rows[1].memory, 80.0 / 78, 0.02);
}

TEST(PublishedRuns, AreRefusedWithTheirRow) {
  const std::string row = row_with(0, "b", row_with(4, "128", row_with(5, "1", row_with(7, "128"))));
  try {
    PublishedRuns(read(kHeader + kRow + row_with(11, "1", row)));
    FAIL() << "tp=128 of 32 heads";
  } catch (const InputError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("runs.csv:3: b: "), std::string::npos) << text;
    EXPECT_NE(text.find("num_attention_heads"), std::string::npos) << text;
  }
}

/// Returns the prediction of a documented recipe, after `change` of what is documented.
PublishedForecast predicted(const std::string& name, const std::function<void(DocumentedRun&)>& change = {}) {
  const std::string file = source_folder() + "/recipes/" + name + ".yaml";
  DocumentedRun documented = load_documented(file).value();
  if (change) change(documented);
  return predict(run_of(name, load_recipe(file, {"model.init=random"}, ""), documented), program_rates());
}

TEST(DocumentedRuns, ArePredictedAsTheirProgramsWithPipelines) {
  const PublishedForecast nanotron = predicted("nanotron/best_1b_1n");
  EXPECT_EQ(nanotron.software, "nanotron");
  EXPECT_EQ(nanotron.micro_batches, 16);
  EXPECT_GT(nanotron.time.bubble, 0);
  EXPECT_LT(std::abs(*nanotron.time_error()), 0.25);
  const PublishedForecast eager =
      predicted("nanotron/best_1b_1n", [](DocumentedRun& run) { run.reference = "Someone"; });
  EXPECT_GT(eager.time.elementwise, 1.5 * nanotron.time.elementwise) << "the change reaches the timelines of stages";
}

TEST(DocumentedRuns, ArePredictedWithExperts) {
  const PublishedForecast automodel = predicted("automodel/qwen3_moe_30b");
  EXPECT_NEAR(*automodel.measured_seconds, 21.773, 1e-9);
  EXPECT_GT(automodel.time.exposed.at("ep"), 0);
  EXPECT_LT(std::abs(*automodel.time_error()), 0.6);
}

TEST(DocumentedRuns, HaveFiguresWithUnits) {
  const auto figure = [](const std::string& text) {
    DocumentedRun run;
    run.figure = text;
    return figure_of(run);
  };
  EXPECT_EQ(figure("18.90 s/step, 389 TFLOP/s")->value, 18.9);
  EXPECT_EQ(figure("18.90 s/step, 389 TFLOP/s")->unit, "s/step");
  EXPECT_EQ(figure("430 TFLOP/s full, 43 % MFU")->unit, "TFLOP/s full");
  EXPECT_EQ(figure("10000 tok/s/gpu, about")->value, 10000);
  for (const char* none : {"", "38 % MFU", "about 10 minutes", "430 TFLOP/s", "-3 s/step", "3"}) {
    EXPECT_FALSE(figure(none)) << none;
  }
}

TEST(Software, FollowsSourceAndColumns) {
  PublishedRun run;
  run.system = "h100";
  run.compiled = "fused";
  run.precision = "fp8";
  run.source = "NeMo 24.07";
  EXPECT_EQ(software_of(run).name, "NeMo");
  EXPECT_TRUE(software_of(run).fp8_products);
  EXPECT_FALSE(software_of(run).fp8_gathers);
  EXPECT_EQ(software_of(run).attention_share, 1);
  run.source = "meshtrain on one H200";
  EXPECT_EQ(software_of(run).name, "meshtrain");
  EXPECT_EQ(software_of(run).logit_bytes_moved, 0) << "ours changes nothing";
  run.source = "Somebody";
  EXPECT_EQ(software_of(run).name, "Megatron");
  run.compiled = "no";
  EXPECT_EQ(software_of(run).name, "FSDP2");
  EXPECT_EQ(software_of(run).elementwise, Software::Elementwise::Eager);
  EXPECT_TRUE(software_of(run).fp8_gathers);
  EXPECT_LT(software_of(run).attention_share, 1) << "FlashAttention-2 on Hopper";
  run.system = "a100";
  run.precision = "bf16_mixed";
  EXPECT_EQ(software_of(run).attention_share, 1);
  EXPECT_FALSE(software_of(run).fp8_gathers);
}

TEST(PublishedScore, IsOneLineOfJson) {
  PublishedScore score;
  score.rows = 2;
  EXPECT_EQ(to_json(score),
            "{\"rows\":2,\"time_error_mean\":0.0,\"time_error_worst\":0.0,\"kendall_tau_mean\":0.0,"
            "\"memory_error_mean\":0.0,\"out_of_memory_named\":0,\"out_of_memory_total\":0,\"fitting_refused\":0}");
}

/// Runs the program on a table.
Ending run_program_on(const std::string& table) {
  return run_program({build_folder() + "/benchmarks/published_benchmark", table});
}

/// Returns the program's output for a table of benchmarks/published, and the score at its end.
std::pair<std::string, nlohmann::json> held_against(const std::string& table) {
  const Ending ending = run_program_on(source_folder() + "/benchmarks/published/" + table);
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.err, "");
  const size_t begin = ending.out.rfind('\n', ending.out.size() - 2) + 1;
  return {ending.out, nlohmann::json::parse(ending.out.substr(begin))};
}

/// Returns the text of a rate, "0.92", in the line of `out` that begins with `which`.
std::string rate_of(const std::string& out, const std::string& which, const std::string& rate) {
  const size_t line = out.find("\nrates " + which), at = out.find(" " + rate + " ", line);
  return line == std::string::npos || at == std::string::npos ? "" : out.substr(at + rate.size() + 2, 4);
}

TEST(PublishedProgram, HoldsThePlanAgainstOtherPrograms) {
  const auto [out, score] = held_against("published_runs.csv");
  EXPECT_EQ(score.size(), 8u);
  EXPECT_EQ(score["rows"], 37);
  EXPECT_LE(score["time_error_mean"], 0.1);
  EXPECT_GE(score["kendall_tau_mean"], 0.9);
  EXPECT_LE(score["memory_error_mean"], 0.1);
  EXPECT_EQ(score["out_of_memory_total"], 2);
  EXPECT_EQ(score["out_of_memory_named"], 2);
  EXPECT_EQ(score["fitting_refused"], 0);
  EXPECT_EQ(count(out, " named\n"), 2) << out;
  for (const RateMember& rate : kRateMembers) {
    EXPECT_EQ(rate_of(out, "fitted", rate.name), rate_of(out, "of documented recipes", rate.name)) << rate.name << out;
  }
  for (const char* rate : {"fp8 products", "on a host", "among hosts"}) {
    EXPECT_EQ(rate_of(out, "fitted", rate), rate_of(out, "of the presets", rate)) << rate << "\n" << out;
    EXPECT_NE(rate_of(out, "fitted", rate), "") << out;
  }
}

// Runs of this program on one GPU: docs/benchmarks.md has them.
TEST(PublishedProgram, HoldsThePlanAgainstOwnRuns) {
  const auto [out, score] = held_against("own_runs.csv");
  EXPECT_EQ(score["rows"], 5);
  EXPECT_LE(score["time_error_worst"], 0.1) << out;
  EXPECT_LE(score["memory_error_mean"], 0.005) << out;
  for (const char* rate : {"products", "attention", "memory"}) {
    EXPECT_EQ(rate_of(out, "fitted", rate), rate_of(out, "of the presets", rate)) << rate << "\n" << out;
  }
}

TEST(PublishedProgram, RefusesATableThatItDoesNotKnow) {
  const ScratchFolder folder;
  const std::string path = folder.path() / "runs.csv";
  write_file(path, "id,source,kind\n");
  const Ending ending = run_program_on(path);
  EXPECT_EQ(ending.status, 2);
  EXPECT_EQ(ending.out, "");
  EXPECT_EQ(ending.err.rfind("published_benchmark: " + path + ":1: unknown column \"kind\": ", 0), 0u) << ending.err;
  EXPECT_EQ(ending.err.find('\n'), ending.err.size() - 1) << ending.err;
}

}  // namespace
}  // namespace meshtrain::testing

#include "runtime/program/forecast/pipeline_forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "pipeline_parallel/simulate_schedule.h"
#include "runtime/program/forecast/forecast_text.h"
#include "runtime/program/forecast/in_flight.h"
#include "runtime/program/forecast/settings.h"
#include "runtime/program/recipe/load.h"
#include "tests/runtime/program/forecast/gpu_request.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

constexpr ScheduleKind kOne = ScheduleKind::OneForwardOneBackward, kSeveral = ScheduleKind::Interleaved;

Recipe staged(const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"model.num_hidden_layers=8", "train.micro_batch=1", "train.global_batch=32",
                                  "parallel.pipeline.schedule=1f1b"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_recipe(source_folder() + "/recipes/quickstart.yaml", all, "");
}

/// Returns the forecast of a rank that was simulated with `count` micro-batches: a forward takes 1 s, a backward 2 s,
/// and the last one 1 s more; 0.5 s before the first action, and 0.25 s after the last.
StepForecast recorded(const std::vector<int>& stages, int count, int all) {
  StepForecast step;
  step.actions = {.before = 0.5, .after = 0.25};
  for (const int stage : stages) {
    for (int i = 0; i < count; ++i) {
      step.actions.actions[{PipelineAction::Kind::Forward, stage, i}] = 1;
      step.actions.actions[{PipelineAction::Kind::Backward, stage, i}] = i + 1 == count ? 3 : 2;
    }
  }
  step.time.emplace();
  step.time->products = static_cast<double>(stages.size()) * (3.0 * all + 1) + 0.75;
  return step;
}

TEST(PipelineForecast, TimeIsThatOfTheScheduleAndOfWhatIsAroundIt) {
  Decisions decisions{{}, MeshLayout({{"pp", 4}, {"dp", 1}, {"cp", 1}, {"tp", 1}}), {}};
  decisions.pipeline = {kOne, {2, 2, 2, 2}};
  // All ranks like the second, which was simulated with five micro-batches.
  const StepForecast rank = recorded({1}, 5, 16);
  const TimeForecast time = pipeline_time(decisions, {&rank, &rank, &rank, &rank}, 16);
  const double schedule = simulate_schedule(make_schedule(kOne, 4, 1, 16), std::vector<StageSeconds>(4)).seconds;
  EXPECT_DOUBLE_EQ(schedule, 3 * (16 + 3));
  EXPECT_DOUBLE_EQ(time.total(), schedule + 0.75 + 4) << "the last backward of each stage has to wait for the next's";
  EXPECT_DOUBLE_EQ(time.bubble, 3 * 3 + 3);
  // Messages delay the first forward of each stage, and the last backward.
  StepForecast late = rank;
  late.actions.message = 0.1;
  EXPECT_GE(pipeline_time(decisions, {&late, &late, &late, &late}, 16).bubble, time.bubble + 6 * 0.1 - 1e-9);
}

TEST(PipelineForecast, ASlowStageMakesOthersWait) {
  Decisions decisions{{}, MeshLayout({{"pp", 2}, {"dp", 1}, {"cp", 1}, {"tp", 1}}), {}};
  decisions.pipeline = {kOne, {2, 2}};
  const StepForecast fast = recorded({0}, 4, 4);
  StepForecast slow = recorded({1}, 4, 4);
  for (auto& [action, seconds] : slow.actions.actions) seconds *= 2;
  slow.time->products = 2 * (3 * 4 + 1) + 0.75;
  const TimeForecast time = pipeline_time(decisions, {&fast, &slow}, 4);
  EXPECT_DOUBLE_EQ(time.total(), 1 + 26 + 3 + 0.75);
  EXPECT_DOUBLE_EQ(time.products, (13 + 26) / 2.0 + 0.75) << "the mean";
}

TEST(PipelineForecast, FewMicroBatchesReachThePeak) {
  for (const int64_t pp : {2, 4, 8}) {
    for (int64_t rank = 0; rank < pp; ++rank) {
      const InFlight one =
          micro_batches_to_peak({kOne, std::vector<int64_t>(static_cast<size_t>(pp), 1)}, pp, rank, 512);
      EXPECT_GE(one.micro_batches, pp - rank);
      EXPECT_LE(one.micro_batches, pp + 2);
      EXPECT_EQ(one.round, 1);
      const InFlight two =
          micro_batches_to_peak({kSeveral, std::vector<int64_t>(static_cast<size_t>(2 * pp), 1)}, pp, rank, 512);
      EXPECT_GE(2 * two.micro_batches, pp + 2 * (pp - 1 - rank) + 1);
      EXPECT_LE(two.micro_batches, 3 * pp);
      EXPECT_EQ(two.micro_batches % pp, 0);
      EXPECT_EQ(two.round, pp);
    }
  }
}

TEST(PipelineForecast, StagesWithTheSameLayersAreSimulatedOnce) {
  const auto ranks = [](const std::vector<std::string>& settings, int64_t pp) {
    const Recipe recipe = staged(settings);
    std::vector<int64_t> found;
    for (const StagesAlike& each :
         distinct_stages(resolve(recipe, MeshLayout::fit({{"pp", pp}}, recipe.parallel.order, pp)))) {
      found.push_back(each.rank);
    }
    return found;
  };
  EXPECT_EQ(ranks({}, 8), (std::vector<int64_t>{0, 1, 7}));
  EXPECT_EQ(ranks({"parallel.pipeline.layers=[1,2,2,1,2]", "train.global_batch=30"}, 5),
            (std::vector<int64_t>{0, 1, 3, 4}));
  EXPECT_EQ(ranks({"optimizer.name=muon"}, 4), (std::vector<int64_t>{0, 1, 2, 3})) << "layers are not alike";
}

TEST(PipelineForecast, TheFullestRankIsNamed) {
  const Recipe recipe = staged({"parallel.pipeline.layers=[1,4,2,1]"});
  const MeshLayout layout = MeshLayout::fit({{"pp", 4}, {"dp", 2}}, recipe.parallel.order, 8);
  const Decisions decisions = resolve(recipe, layout);
  const RunForecast run = forecast(decisions, {8, true});
  const std::vector<int64_t> stages = stage_memory(decisions, {8, true});
  ASSERT_EQ(stages.size(), 4u);
  EXPECT_EQ(run.step.memory().total(), *std::ranges::max_element(stages));
  EXPECT_EQ(layout.coordinate(run.rank, "pp"), 1);
  EXPECT_TRUE(has(describe_stages(decisions.pipeline, stages),
                  "1f1b over 4 stages of 1, 4, 2 and 1 layers; the ranks along pp need "));
}

TEST(PipelineForecast, TheSearchHasPipelinesWhereTheRecipeAsksForThem) {
  const auto meshes_of = [](const Recipe& recipe) {
    std::set<std::string> all;
    for (const MeshLayout& layout : layouts_of(recipe, 8)) all.insert(layout.describe());
    return all;
  };
  const Recipe recipe = staged({});
  EXPECT_EQ(meshes_of(recipe).size(), 20u);
  EXPECT_TRUE(meshes_of(recipe).contains("pp=8,dp=1,cp=1,tp=1"));
  EXPECT_EQ(meshes_of(staged({"model.num_hidden_layers=4"})).size(), 19u) << "pp=8 has no layers";
  EXPECT_EQ(meshes_of(staged({"parallel.pipeline.schedule=auto"})).size(), 10u);
  EXPECT_EQ(meshes_of(staged({"parallel.pipeline.schedule=auto", "parallel.mesh.pp=2"})).size(), 20u);
}

// A rank between the ends has no copy of the embedding.
TEST(PipelineForecast, ATiedModelOnTheHostIsRefusedOnEachRank) {
  const Recipe recipe = staged({"device=cuda", "parallel.fsdp={mode: full_shard, no_sync: true, offload: {to: host}}"});
  const Decisions decisions = resolve(recipe, MeshLayout::fit({{"pp", 4}}, recipe.parallel.order, 4));
  for (int64_t rank = 0; rank < 4; ++rank) {
    const std::string refusal = message<InputError>([&] { forecast_rank(decisions, {8, true}, rank); });
    EXPECT_TRUE(refusal.starts_with("parallel.fsdp.offload: the embedding is also the head, so ")) << rank << refusal;
  }
}

TEST(PipelineForecast, APlanSaysThatPipelinesAreLeftOut) {
  const Recipe flat = staged({"parallel.pipeline.schedule=auto"});
  EXPECT_EQ(left_out(flat, 8),
            "meshes with pp are left out: --set parallel.mesh.pp=2, or another size above 1, adds them all");
  EXPECT_EQ(left_out(staged({}), 8), "");
  EXPECT_EQ(left_out(flat, 1), "");
  EXPECT_EQ(left_out(staged({"parallel.pipeline.schedule=auto", "model.num_hidden_layers=1"}), 8), "");
  ForecastRequest request = gpu_request(2);
  request.memory = request.runtime_bytes() + 1;
  EXPECT_TRUE(has(explain(search_meshes(flat, request), flat, request), "; meshes with pp are left out: "));
}

TEST(PipelineForecast, AMeshWithoutPpReplacesOneThatHasIt) {
  const Recipe recipe = staged({"parallel.mesh.pp=2"});
  const Recipe chosen = on_mesh(recipe, MeshLayout::fit({{"dp", 2}}, recipe.parallel.order, 2));
  EXPECT_EQ(MeshLayout::fit(chosen.parallel.mesh, chosen.parallel.order, 2).describe(), "dp=2,cp=1,tp=1");
}

TEST(PipelineForecast, APlanShowsTheBubble) {
  const Recipe recipe = staged({});
  const ForecastRequest request = gpu_request(8);
  const MeshSearch search = search_meshes(recipe, request);
  const auto mesh = std::ranges::find(search.meshes, "pp=4,dp=2,cp=1,tp=1",
                                      [](const MeshForecast& each) { return each.layout.describe(); });
  ASSERT_NE(mesh, search.meshes.end());
  EXPECT_EQ(mesh->forecast.micro_batches, 16);
  const double share = mesh->forecast.step.time->bubble / mesh->seconds();
  EXPECT_GT(share, 0.5 * 3 / (16 + 3));
  EXPECT_LT(share, 0.5);
  const std::string text = to_text(search, request, 100);
  EXPECT_TRUE(has(text, "   bubble   ") || has(text, "  bubble  ") || has(text, " bubble ")) << text;
  EXPECT_TRUE(has(text, "\n      1f1b over 4 stages of 2 layers\n")) << text;
  EXPECT_FALSE(
      has(to_text(search_meshes(staged({"parallel.pipeline.schedule=auto"}), request), request, 100), "bubble"));
}

TEST(PipelineForecast, SettingsHaveOtherSchedules) {
  const Recipe recipe = staged({});
  const MeshLayout layout = MeshLayout::fit({{"pp", 4}}, recipe.parallel.order, 4);
  const ForecastRequest request = gpu_request(4);
  const MeshForecast one = forecast_mesh(recipe, layout, {}, request);
  const MeshForecast two = forecast_mesh(
      recipe, layout, {"parallel.pipeline.schedule=interleaved", "parallel.pipeline.stages_per_rank=2"}, request);
  EXPECT_LT(two.forecast.step.time->bubble, 0.8 * one.forecast.step.time->bubble);
  EXPECT_GT(two.memory(), one.memory());
  EXPECT_GT(two.forecast.step.traffic.size(), 0u);
  const MeshForecast late = forecast_mesh(recipe, layout, {"parallel.pipeline.schedule=zb_h1"}, request);
  EXPECT_LT(late.forecast.step.time->bubble, one.forecast.step.time->bubble);
  std::set<std::string> offered;
  for (const Choice& choice : choices_of(recipe, layout, request.hosts)) {
    for (const std::vector<Settings>& ladder : choice) offered.insert(ladder.front().front());
  }
  for (const std::string word : {"1f1b", "interleaved", "zb_h1"}) {
    EXPECT_TRUE(offered.contains("parallel.pipeline.schedule=" + word)) << word;
  }
}

}  // namespace
}  // namespace meshtrain::testing

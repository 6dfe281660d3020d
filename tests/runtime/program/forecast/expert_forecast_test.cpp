// Forecasts of mixtures, and ep in the search.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "runtime/program/forecast/forecast_text.h"
#include "runtime/program/forecast/search.h"
#include "runtime/program/recipe/load.h"
#include "tests/runtime/program/forecast/gpu_request.h"
#include "tests/runtime/program/recipe/fitting_recipe.h"
#include "tests/support/files.h"

namespace meshtrain::testing {
namespace {

/// Returns a mixture whose experts need most of a step.
Recipe wide_mixture() {
  Recipe recipe = fitting_recipe();
  recipe.device = "cuda";
  ModelShape& shape = recipe.model.shape;
  shape.family = "mixtral";
  shape.experts.num_experts = 16;
  shape.experts.num_experts_per_tok = 2;
  shape.intermediate_size = 4096;
  return recipe;
}

TEST(ExpertForecast, HasTheWorstRoutingAsASecondNumber) {
  const Recipe recipe = wide_mixture();
  const MeshLayout layout = MeshLayout::fit({{"dp", 4}, {"ep", 4}}, recipe.parallel.order, 4);
  const Decisions decisions = resolve(recipe, layout);
  const RunForecast balanced = forecast(decisions, {4, true}),
                    all = forecast_worst_routing(decisions, {4, true}).value();
  EXPECT_GT(all.step.memory().total(), balanced.step.memory().total());
  const auto rows_sent = [](const RunForecast& run) {
    int64_t bytes = 0;
    for (const auto& [key, traffic] : run.step.traffic) bytes += key.purpose == "ep.rows" ? traffic.sent_bytes : 0;
    return bytes;
  };
  // Balanced, a rank sends 3/4 of its rows to and 3/4 from its experts; in the worst case those of three others, back.
  EXPECT_EQ(rows_sent(all), 2 * rows_sent(balanced));
  EXPECT_FALSE(
      forecast_worst_routing(resolve(recipe, MeshLayout::fit({{"dp", 4}}, recipe.parallel.order, 4)), {4, true}));
}

TEST(ExpertForecast, IsPrinted) {
  MeshForecast mesh{MeshLayout({{"dp", 4}}, 4), {}, wide_mixture(), {}};
  EXPECT_EQ(worst_routing_text(mesh), "");
  mesh.worst_routing.emplace();
  mesh.worst_routing->step.gradients.activations = int64_t{3} << 20;
  EXPECT_EQ(worst_routing_text(mesh),
            "  if all tokens choose the experts of one rank, that rank of dp=4,ep=4 needs 3 MiB and sends - in a\n"
            "  step\n");
  MeshSearch search;
  search.meshes.push_back(mesh);
  const auto json = nlohmann::json::parse(to_json(search, ForecastRequest{}));
  EXPECT_EQ(json["meshes"][0]["worst_routing"]["memory_bytes_total"], 3 << 20);
}

TEST(ExpertForecast, TheSearchHasEachEpThatDividesTheExperts) {
  const auto meshes_of = [](const Recipe& recipe) {
    std::set<std::string> all;
    for (const MeshLayout& layout : layouts_of(recipe, 8)) all.insert(layout.describe());
    return all;
  };
  Recipe recipe = wide_mixture();
  EXPECT_EQ(meshes_of(recipe).size(), 40u) << "ep of 1, 2, 4 and 8 for each dp, cp and tp";
  EXPECT_TRUE(meshes_of(recipe).contains("dp=2,cp=2,tp=2,ep=8"));
  recipe.model.shape.experts.num_experts = 6;
  EXPECT_EQ(meshes_of(recipe).size(), 20u) << "3 does not divide 8 ranks";
  EXPECT_EQ(meshes_of(fitting_recipe()).size(), 10u) << "no experts";
}

TEST(ExpertForecast, TheBestMeshHasEpWhereMemoryForcesIt) {
  const Recipe recipe = wide_mixture();
  ForecastRequest request = gpu_request(2);
  const MeshSearch all = search_meshes(recipe, request);
  int64_t least = INT64_MAX;
  for (const MeshForecast& mesh : all.meshes) {
    if (mesh.layout.ep() == 1) least = std::min(least, mesh.memory());
  }
  request.memory = least + request.runtime_bytes() - 1;
  const MeshForecast best = search_meshes(recipe, request).meshes.at(0);
  EXPECT_TRUE(best.fits);
  EXPECT_EQ(best.layout.ep(), 2);
}

TEST(ExpertForecast, OtherSettingsAreNotTriedForEveryEp) {
  // One head and an odd number of tokens: neither tp nor cp.
  const Recipe recipe =
      load_recipe(source_folder() + "/recipes/mixture.yaml",
                  {"model.num_attention_heads=1", "model.num_key_value_heads=1", "train.sequence_length=63",
                   "model.num_hidden_layers=1", "train.activation_checkpointing.mode=full"},
                  "");
  ForecastRequest request = gpu_request(4);
  request.scope = SearchScope::All;
  const std::vector<MeshForecast> meshes = search_meshes(recipe, request).meshes;
  EXPECT_EQ(meshes.size(), 3u) << "ep of 1, 2 and 4";
  EXPECT_EQ(std::ranges::count_if(meshes, [](const MeshForecast& mesh) { return !mesh.settings.empty(); }), 1)
      << "ep=4 is the fastest, and needs least memory";
}

}  // namespace
}  // namespace meshtrain::testing

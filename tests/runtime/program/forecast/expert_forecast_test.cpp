// The forecast of a mixture whose experts are cut over ep: balanced, and with the worst routing.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/program/forecast/forecast_text.h"
#include "runtime/program/recipe/decisions.h"
#include "tests/runtime/program/recipe/fitting_recipe.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

Recipe mixture() {
  Recipe recipe = fitting_recipe();
  recipe.device = "cuda";
  ModelShape& shape = recipe.model.shape;
  shape.family = "mixtral";
  shape.experts.num_experts = 16;
  shape.experts.num_experts_per_tok = 2;
  shape.intermediate_size = 4096;
  return recipe;
}

RunForecast worst(const Recipe& recipe, int64_t ranks, int64_t ep) {
  const MeshLayout layout = MeshLayout::fit({{"dp", ranks}, {"ep", ep}}, recipe.parallel.order, ranks);
  return forecast_worst_routing(resolve(recipe, layout), {ranks, true}).value();
}

TEST(ExpertForecast, HasTheWorstRoutingAsASecondNumber) {
  const Recipe recipe = mixture();
  const MeshLayout layout = MeshLayout::fit({{"dp", 4}, {"ep", 4}}, recipe.parallel.order, 4);
  const Decisions decisions = resolve(recipe, layout);
  const RunForecast balanced = forecast(decisions, {4, true}), all = worst(recipe, 4, 4);
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
  MeshForecast mesh{MeshLayout({{"dp", 4}}, 4), {}, mixture(), {}};
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

}  // namespace
}  // namespace meshtrain::testing

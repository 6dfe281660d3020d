// Settings that a search tries beside meshes, on GPUs that do not exist.
#include "runtime/program/forecast/search.h"

#include <gtest/gtest.h>

#include <set>

#include "mesh/base/error.h"
#include "runtime/program/forecast/improve.h"
#include "runtime/program/forecast/settings.h"
#include "runtime/program/recipe/load.h"
#include "runtime/training/optimizer/state_pager.h"
#include "tests/runtime/program/forecast/gpu_request.h"
#include "tests/support/files.h"

namespace meshtrain::testing {
namespace {

Recipe recipe_with(const Settings& settings) {
  return load_recipe(source_folder() + "/recipes/quickstart.yaml", settings, "");
}

MeshLayout layout_of(int64_t dp, int64_t cp, int64_t tp, const std::vector<std::string>& order = training_axes()) {
  return MeshLayout::fit({{"dp", dp}, {"cp", cp}, {"tp", tp}}, order, dp * cp * tp);
}

std::set<std::string> settings_in(const Choice& choice) {
  std::set<std::string> all;
  for (const std::vector<Settings>& ladder : choice) {
    for (const Settings& settings : ladder) all.insert(settings.begin(), settings.end());
  }
  return all;
}

TEST(PlanSettings, OrdersOfAxesAreTriedWhereHostsDiffer) {
  const Recipe recipe = recipe_with({});
  EXPECT_TRUE(order_choice(recipe, layout_of(4, 1, 2), {8, true}).empty()) << "one host";
  EXPECT_TRUE(order_choice(recipe, layout_of(16, 1, 1), {8, true}).empty()) << "one axis";
  // tp within a host, as in the recipe, or dp as far as a host has room for it.
  EXPECT_EQ(order_choice(recipe, layout_of(8, 1, 2), {8, true}).size(), 1u);
  EXPECT_EQ(order_choice(recipe, layout_of(8, 2, 4), {8, true}).size(), 3u);
}

TEST(PlanSettings, AreThoseThatTheMeshHasUseFor) {
  const Recipe recipe = recipe_with({});
  const auto of = [&](const MeshLayout& layout) {
    std::set<std::string> all;
    for (const Choice& choice : choices_of(recipe, layout, {4, true})) all.merge(settings_in(choice));
    return all;
  };
  const std::set<std::string> alone = of(layout_of(1, 1, 1)), all = of(layout_of(4, 2, 2));
  EXPECT_EQ(alone.count("train.micro_batch=16"), 1u) << "the global batch";
  EXPECT_EQ(alone.count("parallel.fsdp.mode=full_shard"), 0u);
  EXPECT_EQ(alone.count("parallel.sequence_parallel=on"), 0u);
  EXPECT_EQ(all.count("train.micro_batch=8"), 0u) << "a rank has 4 samples";
  for (const char* setting :
       {"train.micro_batch=4", "train.activation_checkpointing.mode=selective", "parallel.fsdp.mode=full_shard",
        "parallel.fsdp.shard_size=2", "parallel.fsdp.prefetch=2", "parallel.fsdp.unit=sublayer",
        "parallel.sequence_parallel=off", "parallel.context.algorithm=ulysses"}) {
    EXPECT_EQ(all.count(setting), 1u) << setting;
  }
}

TEST(PlanSettings, AreLeftOutWhereARecipeHasThem) {
  const Recipe recipe = recipe_with({"parallel.fsdp.mode=full_shard"});
  EXPECT_EQ(that_change(recipe, {"parallel.fsdp.mode=full_shard", "train.micro_batch=2"}),
            (Settings{"train.micro_batch=2"}));
}

TEST(PlanSettings, ModesAreTriedWithoutKeysOfOthers) {
  const Recipe recipe =
      recipe_with({"train.activation_checkpointing={mode: full, every: 2}", "parallel.fsdp.mode=no_shard"});
  const ForecastRequest request = gpu_request(1, 1);
  const MeshLayout layout = layout_of(1, 1, 1);
  const auto best = improve(recipe, layout, forecast_mesh(recipe, layout, {}, request),
                            choices_of(recipe, layout, request.hosts), request);
  ASSERT_TRUE(best);
  EXPECT_EQ(best->recipe.train.activation_checkpointing.mode, "none");
  EXPECT_NE(std::ranges::find(best->settings, "train.activation_checkpointing.every=null"), best->settings.end());
}

TEST(PlanSettings, MakeStepsShorterAsLongAsTheyFit) {
  const Recipe recipe = recipe_with({"train.activation_checkpointing.mode=full", "train.micro_batch=1"});
  ForecastRequest request = gpu_request(4, 4);
  const MeshLayout layout = layout_of(4, 1, 1);
  const MeshForecast own = forecast_mesh(recipe, layout, {}, request);
  const std::vector<Choice> choices = choices_of(recipe, layout, request.hosts);
  const auto free = improve(recipe, layout, own, choices, request);
  ASSERT_TRUE(free);
  EXPECT_LT(free->seconds(), own.seconds());
  EXPECT_FALSE(free->settings.empty());
  // In the memory that the own settings need, what makes it fastest has no room.
  request.memory = own.memory() + kGpuRuntimeBytes;
  const auto within = improve(recipe, layout, forecast_mesh(recipe, layout, {}, request), choices, request);
  ASSERT_TRUE(within);
  EXPECT_TRUE(within->fits);
  EXPECT_LE(within->memory(), own.memory());
  EXPECT_GT(within->seconds(), free->seconds());
  // In less, settings are found that fit.
  const Recipe unsharded = recipe_with({"parallel.fsdp.mode=no_shard"});
  const MeshForecast large = forecast_mesh(unsharded, layout, {}, request);
  request.memory = large.memory() + kGpuRuntimeBytes - (1 << 20);
  const auto less = improve(unsharded, layout, forecast_mesh(unsharded, layout, {}, request), choices, request);
  ASSERT_TRUE(less);
  EXPECT_TRUE(less->fits);
}

TEST(PlanSettings, MakeARefusedMeshPossible) {
  const Recipe recipe = recipe_with({"train.micro_batch=16"});
  const ForecastRequest request = gpu_request(2, 2);
  const MeshLayout layout = layout_of(2, 1, 1);
  EXPECT_THROW(forecast_mesh(recipe, layout, {}, request), InputError);
  const auto possible = improve(recipe, layout, std::nullopt, choices_of(recipe, layout, request.hosts), request);
  ASSERT_TRUE(possible);
  EXPECT_NE(std::ranges::find(possible->settings, "train.micro_batch=8"), possible->settings.end());
}

TEST(PlanSettings, OffloadTakesTheTimeOfItsCopiesAndUpdates) {
  const Recipe recipe = recipe_with({"parallel.fsdp.mode=full_shard", "train.micro_batch=1"});
  const MeshLayout layout = layout_of(2, 1, 1);
  const MeshForecast without = forecast_mesh(recipe, layout, {}, gpu_request(2, 2));
  const auto with = [&](const HostRates& host) {
    ForecastRequest request = gpu_request(2, 2);
    Machine machine = *request.machine;
    machine.host = host;
    request.machine = std::make_shared<const Machine>(machine);
    return forecast_mesh(recipe, layout, {"parallel.fsdp.offload={to: host}"}, request);
  };
  const MeshForecast free = with({}), slow = with({.to_gpu = 1e8, .to_host = 1e8, .update = 1e8});
  const MeshForecast slow_updates = with({.to_gpu = 1e18, .to_host = 1e18, .update = 1e8});
  const OffloadForecast& offload = slow.forecast.step.offload;
  EXPECT_GT(offload.to_device, offload.to_host) << "parameters travel for each pass";
  EXPECT_NEAR(slow.forecast.step.time->copies, static_cast<double>(offload.copied()) / 1e8, 1e-6);
  EXPECT_EQ(free.forecast.step.time->copies, 0);
  EXPECT_EQ(without.forecast.step.time->copies, 0);
  EXPECT_GT(slow.seconds(), free.seconds() + static_cast<double>(offload.to_device) / 1e8 / 2);
  EXPECT_GT(slow_updates.forecast.step.time->optimizer, 10 * without.forecast.step.time->optimizer);
  EXPECT_LT(slow.memory(), without.memory());
}

TEST(PlanSettings, OffloadIsTakenWhereNothingElseFits) {
  const Recipe recipe = recipe_with({"train.micro_batch=1", "train.activation_checkpointing.mode=full"});
  ForecastRequest request = gpu_request(1, 1);
  request.scope = SearchScope::All;
  const std::string offload = "parallel.fsdp.offload={to: host}";
  const auto found = [&] {
    const MeshForecast best = search_meshes(recipe, request).meshes.at(0);
    EXPECT_TRUE(best.fits);
    return std::ranges::find(best.settings, offload) != best.settings.end();
  };
  EXPECT_FALSE(found());
  const int64_t state = forecast_mesh(recipe, layout_of(1, 1, 1), {}, request).memory();
  const int64_t offloaded =
      forecast_mesh(recipe, layout_of(1, 1, 1), {"parallel.fsdp.mode=full_shard", offload}, request).memory();
  ASSERT_LT(offloaded, state);
  request.memory = offloaded + kGpuRuntimeBytes;
  EXPECT_TRUE(found());
}

TEST(PlanSettings, TheStateAloneIsOffloadedWhereThatIsEnough) {
  const Recipe recipe = recipe_with({"train.micro_batch=1", "train.activation_checkpointing.mode=full"});
  ForecastRequest request = gpu_request(1, 1);
  request.scope = SearchScope::All;
  const std::string offload = "parallel.fsdp.offload={to: host, parameters: false}";
  const MeshForecast without = forecast_mesh(recipe, layout_of(1, 1, 1), {}, request);
  const MeshForecast with = forecast_mesh(recipe, layout_of(1, 1, 1), {offload}, request);
  const StepMemory before = without.forecast.step.memory(), after = with.forecast.step.memory();
  EXPECT_EQ(after.parameters, before.parameters);
  EXPECT_EQ(after.gradients, before.gradients);
  EXPECT_LE(after.optimizer, 3 * 2 * 4 * StatePager::kPiece) << "slots";
  const OffloadForecast& copies = with.forecast.step.offload;
  EXPECT_GE(copies.host, before.optimizer);
  EXPECT_EQ(copies.to_device, before.optimizer);
  EXPECT_EQ(copies.to_host, before.optimizer);
  request.memory = with.memory() + kGpuRuntimeBytes;
  const MeshForecast best = search_meshes(recipe, request).meshes.at(0);
  EXPECT_TRUE(best.fits);
  EXPECT_NE(std::ranges::find(best.settings, offload), best.settings.end()) << "and copies less than all shards";
}

TEST(PlanSettings, TheLargestSequenceFitsAndTheNextDoesNot) {
  const Recipe recipe = recipe_with({"train.micro_batch=1"});
  ForecastRequest request = gpu_request(1, 1);
  request.memory = kGpuRuntimeBytes + (int64_t{3} << 30);
  const MeshForecast mesh = forecast_mesh(recipe, layout_of(1, 1, 1), {}, request);
  const LargestFit largest = largest_sequence(mesh, request);
  EXPECT_GT(largest.value, recipe.train.sequence_length);
  EXPECT_TRUE(request.has_room_for(largest.memory));
  const std::string longer = "train.sequence_length=" + std::to_string(largest.value + recipe.train.sequence_length);
  EXPECT_FALSE(forecast_mesh(recipe, mesh.layout, {longer}, request).fits);
}

}  // namespace
}  // namespace meshtrain::testing

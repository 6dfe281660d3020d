// Every recipe of the project computes on its mesh, or on one of eight ranks with the same kinds of axes and modes,
// what one rank computes. Every documented recipe fits its own mesh.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "runtime/program/forecast/mesh_forecast.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/reproduce/text.h"
#include "runtime/program/verify/cut.h"
#include "tests/support/files.h"
#include "tests/support/full_run.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRanks = 8;

fs::path recipes_folder() {
  return source_folder() + "/recipes";
}

const std::vector<DocumentedRecipe>& documented() {
  static const std::vector<DocumentedRecipe> all = documented_recipes(recipes_folder());
  return all;
}

/// Returns a share of `all`, by chance, or all of them under --full. MESHTRAIN_COVER_SEED draws anew.
template <class T>
std::vector<T> drawn(std::vector<T> all, size_t parts) {
  if (is_full_run()) return all;
  const char* const seed = std::getenv("MESHTRAIN_COVER_SEED");
  std::mt19937 random(seed == nullptr ? 46 : std::stoul(seed));
  std::shuffle(all.begin(), all.end(), random);
  all.resize((all.size() + parts - 1) / parts);
  return all;
}

/// Returns all recipes that somebody can run; files whose names begin with "base" are for others to extend.
std::vector<fs::path> recipe_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(recipes_folder())) {
    const bool is_base = entry.path().filename().string().starts_with("base");
    if (entry.path().extension() == ".yaml" && !is_base) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

TEST(Recipes, ComputeOnTheirMeshWhatOneRankComputes) {
  std::map<int, std::vector<std::string>> files;  // by the ranks of the mesh, cut to eight
  for (const fs::path& file : drawn(recipe_files(), 5)) {
    const Recipe recipe = load_recipe(file, {"model.init=random"}, "");
    files[static_cast<int>(ranks_of(cut(recipe, kRanks).parallel.mesh))].push_back(file);
  }
  for (const auto& [ranks, some] : files) {
    std::vector<std::string> words = {"verify", "--shrink", "--cut"};
    words.insert(words.end(), some.begin(), some.end());
    const Ending ending = run_meshtrain_on_ranks(ranks, words);
    EXPECT_EQ(ending.status, 0) << ending.err << ending.out;
    EXPECT_EQ(testing::count(ending.out, "\nequal: "), static_cast<int>(some.size())) << ending.out;
    for (const std::string& file : some) EXPECT_NE(ending.out.find(file + ": mesh "), std::string::npos) << file;
    if (is_full_run()) std::printf("%s", ending.out.c_str());
  }
}

TEST(DocumentedRecipes, FitTheirMeshes) {
  EXPECT_GE(documented().size(), 100u);
  for (const DocumentedRecipe& each : documented()) {
    SCOPED_TRACE(each.name);
    EXPECT_NO_THROW(
        resolve(each.recipe, MeshLayout::fit(each.recipe.parallel.mesh, each.recipe.parallel.order, each.num_ranks())));
    EXPECT_GT(each.documented.reference.size(), 15u);
    EXPECT_TRUE(each.documented.hardware.empty() || machine_preset(each.documented.hardware));
    EXPECT_FALSE(missing_files(each).empty()) << "tokens at least are made or fetched";
  }
}

TEST(DocumentedRecipes, AreCutToTheSameKindsOfAxesAndModes) {
  for (const DocumentedRecipe& each : documented()) {
    SCOPED_TRACE(each.name);
    const Recipe small = cut(each.recipe, kRanks);
    const int64_t ranks = ranks_of(small.parallel.mesh);
    const MeshLayout before = MeshLayout::fit(each.recipe.parallel.mesh, each.recipe.parallel.order, each.num_ranks());
    const MeshLayout after = MeshLayout::fit(small.parallel.mesh, small.parallel.order, ranks);
    EXPECT_LE(ranks, kRanks);
    if (each.num_ranks() <= kRanks) {
      EXPECT_EQ(after.describe(), before.describe());
    }
    int others = 0;
    for (const char* axis : {kTensorAxis, kContextAxis, kPipelineAxis}) {
      EXPECT_EQ(before.size(axis) > 1, after.size(axis) > 1) << axis;
      others += before.size(axis) > 1 ? 1 : 0;
    }
    EXPECT_TRUE(before.size(kDataAxis) == 1 || others == 3 || after.size(kDataAxis) > 1);
    EXPECT_EQ(before.ep() > 1, after.ep() > 1);
    if (before.ep() > 1) {
      EXPECT_EQ(before.experts().size(kExpertDataAxis) > 1, after.experts().size(kExpertDataAxis) > 1);
    }
    EXPECT_EQ(small.parallel.fsdp.mode, each.recipe.parallel.fsdp.mode);
    if (const auto shared = small.parallel.fsdp.shard_size; shared && after.size(kDataAxis) > 2) {
      EXPECT_GT(*shared, 1);
      EXPECT_LT(*shared, after.size(kDataAxis) * after.size(kContextAxis));
    }
    EXPECT_LE(small.train.sequence_length, 256);
    EXPECT_NO_THROW(resolve(small, after));
  }
}

// Predicted by the trainer's own step on tensors without memory.
TEST(DocumentedRecipes, ArePlanned) {
  for (const DocumentedRecipe& each : drawn(documented(), 25)) {
    SCOPED_TRACE(each.name);
    Recipe recipe = each.recipe;
    recipe.device = "cuda";
    const auto machine = std::make_shared<const Machine>(*machine_preset("h100"));
    const ForecastRequest request = forecast_request(recipe, each.num_ranks(), 0, machine);
    const MeshLayout layout = MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, each.num_ranks());
    const MeshForecast forecast = forecast_mesh(recipe, layout, {}, request);
    EXPECT_GT(forecast.seconds(), 0);
    EXPECT_GT(forecast.memory(), 0);
  }
}

TEST(DocumentedRecipes, AreTheTablesOfTheDocument) {
  const std::string document = content(source_folder() + "/docs/reproduce.md");
  EXPECT_NE(document.find(list_markdown(documented())), std::string::npos)
      << "docs/reproduce.md has other tables than meshtrain reproduce --markdown prints";
}

// Two ranks of context parallelism, packed documents, ten steps, from weights made here: the loss curve of one rank.
TEST(DocumentedRecipes, PackedContextParallelHasTheLossCurveOfOneRank) {
  const ScratchFolder folder;
  std::vector<uint16_t> tokens(8200 * 10);
  std::mt19937 random(1);
  for (uint16_t& token : tokens) token = static_cast<uint16_t>(random() % 97);
  std::string bytes(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
  write_file(folder.path() / "tokens.bin", bytes);
  const auto losses = [&](int ranks, const std::string& mesh) {
    const std::string run = (folder.path() / mesh).string();
    const Ending ending =
        run_meshtrain_on_ranks(ranks, {"train",     recipes_folder() / "automodel/qwen3_0p6b_packed_cp2.yaml",
                                       "--mesh",    mesh,
                                       "--run-dir", run,
                                       "--set",     "model.hf=" + source_folder() + "/tests/fixtures/qwen3",
                                       "--set",     "data.documents=5",
                                       "--set",     "data.tokens=" + (folder.path() / "tokens.bin").string(),
                                       "--set",     "data.dtype=uint16",
                                       "--set",     "train.precision=fp32",
                                       "--set",     "parallel.fsdp.reduce_dtype=auto",
                                       "--set",     "optimizer.learning_rate=1e-3"});
    EXPECT_EQ(ending.status, 0) << ending.err;
    std::vector<double> all;
    const std::string lines = content(run + "/metrics.jsonl");
    for (size_t at = lines.find("\"loss\":"); at != std::string::npos; at = lines.find("\"loss\":", at + 1)) {
      all.push_back(std::stod(lines.substr(at + 7)));
    }
    return all;
  };
  const std::vector<double> one = losses(1, "cp=1"), two = losses(2, "cp=2");
  ASSERT_EQ(one.size(), 10u);
  ASSERT_EQ(two.size(), 10u);
  EXPECT_NE(one.front(), one.back());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i] / one[i], 1, 1e-6) << "step " << i + 1;
}

TEST(ReproduceCommand, ListsAndProvesRecipes) {
  const std::string folder = recipes_folder();
  const Ending listed = run_meshtrain({"reproduce", "--recipes", folder});
  EXPECT_EQ(listed.status, 0) << listed.err;
  EXPECT_TRUE(listed.out.find("hf_3d/d_dp2_tp2_cp2 ") != std::string::npos) << listed.out;
  EXPECT_EQ(testing::count(listed.out, "\n"), static_cast<int>(documented().size()) + 2);

  const Ending one = run_meshtrain({"reproduce", "tiny_llama", "--recipes", folder, "--ranks", "2"});
  EXPECT_EQ(one.status, 0) << one.err << one.out;
  for (const char* part : {"documented   nanotron examples/config_tiny_llama.yaml", "mpirun -n 8 meshtrain train ",
                           "data.tokens: ", "plan for 8 x h100:", "published                 about 10 minutes",
                           ", not the documented mesh dp=4,cp=1,tp=2", "\nequal: "}) {
    EXPECT_NE(one.out.find(part), std::string::npos) << part << "\n" << one.out;
  }
  EXPECT_NE(
      only_complaint(run_meshtrain({"reproduce", "tiny_lama", "--recipes", folder})).find("did you mean tiny_llama?"),
      std::string::npos);
  EXPECT_NE(only_complaint(run_meshtrain({"reproduce", "--recipes", "/nowhere"})).find("has no recipes"),
            std::string::npos);
}

}  // namespace
}  // namespace meshtrain::testing

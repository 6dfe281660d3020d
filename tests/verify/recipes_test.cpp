// Every recipe of the project computes on its mesh what one rank computes.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "runtime/program/recipe/load.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

/// Returns the recipes by the number of ranks of their mesh.
std::map<int, std::vector<std::string>> recipes() {
  std::map<int, std::vector<std::string>> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source_folder() + "/recipes")) {
    if (entry.path().extension() != ".yaml") continue;
    const Recipe recipe = load_recipe(entry.path(), {"model.init=random"}, "");
    int64_t ranks = 1;
    for (const auto& [axis, size] : recipe.parallel.mesh) ranks *= size == MeshLayout::kAuto ? 1 : size;
    found[static_cast<int>(ranks)].push_back(entry.path());
  }
  for (auto& [ranks, files] : found) std::sort(files.begin(), files.end());
  return found;
}

TEST(Recipes, ComputeOnTheirMeshWhatOneRankComputes) {
  int64_t count = 0;
  for (const auto& [ranks, files] : recipes()) {
    // Attention over the full length would take most of the time; all chunks that cp cuts remain.
    std::vector<std::string> words = {"verify", "--shrink", "--set", "train.sequence_length=256"};
    words.insert(words.end(), files.begin(), files.end());
    const Ending ending = run_meshtrain_on_ranks(ranks, words);
    EXPECT_EQ(ending.status, 0) << ending.err << ending.out;
    EXPECT_EQ(testing::count(ending.out, "\nequal: "), static_cast<int>(files.size())) << ending.out;
    for (const std::string& file : files) EXPECT_NE(ending.out.find(file + ": mesh "), std::string::npos) << file;
    count += static_cast<int64_t>(files.size());
  }
  EXPECT_GE(count, 20);
}

}  // namespace
}  // namespace meshtrain::testing

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "runtime/program/recipe/load.h"
#include "tests/runtime/program/recipe/recipe_folder.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

const std::string kSeed =
    kSmallRecipe + R"(parallel: &p {mesh: {dp: 2, cp: auto}, order: [dp, cp, tp], fsdp: {mode: auto}}
schedule: {name: "cosine", min_ratio: 1.0e-1}  # a comment
device: 'cpu'
)";

/// Expects any text to be a recipe or to be refused in one line.
void expect_no_surprise(const RecipeFolder& folder, const std::string& text) {
  const std::filesystem::path file = folder.write("r.yaml", text);
  try {
    const std::string yaml = to_yaml(load_recipe(file, {}, ""));
    EXPECT_EQ(to_yaml(parse_recipe(yaml)), yaml);
  } catch (const InputError& error) {
    EXPECT_TRUE(is_one_message(error.what())) << error.what();
  }
}

TEST(RecipeFuzz, Truncations) {
  const RecipeFolder folder;
  for (size_t length = 0; length <= kSeed.size(); ++length) expect_no_surprise(folder, kSeed.substr(0, length));
}

TEST(RecipeFuzz, FlippedBytes) {
  const RecipeFolder folder;
  std::mt19937_64 random(1);
  const std::string special = "[]{}:,-&*!|>'\"#%@`?~\n\t \x01\x80\xff";
  for (int round = 0; round < 1500; ++round) {
    std::string text = kSeed;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text[at] = special[random() % special.size()];
          break;
        default:
          text.insert(at, 1, special[random() % special.size()]);
      }
    }
    expect_no_surprise(folder, text);
  }
}

TEST(RecipeFuzz, FlippedOptions) {
  const RecipeFolder folder;
  const std::filesystem::path file = folder.write("r.yaml", kSmallRecipe);
  std::mt19937_64 random(2);
  const std::string seed = "parallel.mesh={dp: 2, tp: [auto]}";
  for (int round = 0; round < 1000; ++round) {
    std::string text = seed;
    for (int flips = 0; flips < 3; ++flips) text[random() % text.size()] = static_cast<char>(random());
    try {
      load_recipe(file, {text}, "");
    } catch (const InputError& error) {
      EXPECT_TRUE(is_one_message(error.what())) << error.what();
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing

// A run uses one list of samples, whatever its meshes, micro-batches and global batches.

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "tests/checkpoint/training.h"
#include "tests/matrix/cell.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

using Locations = std::vector<Mixture::Location>;

/// A part of a run: a number of steps on a mesh of all ranks.
struct Part {
  int64_t dp, tp, cp;
  int64_t global_batch, micro_batch;
  int64_t steps;
};

/// Returns parts for every dp that the ranks allow, with several batches; no batch divides the ones before it.
std::vector<Part> parts() {
  switch (world().size()) {
    case 1:
      return {{1, 1, 1, 5, 1, 3}, {1, 1, 1, 4, 4, 2}, {1, 1, 1, 6, 2, 3}};
    case 2:
      return {{2, 1, 1, 6, 1, 3}, {1, 2, 1, 5, 5, 2}, {1, 1, 2, 7, 1, 2}, {2, 1, 1, 8, 2, 2}};
    case 4:
      return {{4, 1, 1, 8, 1, 3}, {2, 2, 1, 6, 3, 2}, {1, 2, 2, 5, 1, 2}, {4, 1, 1, 8, 2, 2}};
    default:
      return {{8, 1, 1, 16, 2, 2}, {4, 2, 1, 12, 1, 2}, {2, 2, 2, 10, 5, 2}, {1, 4, 2, 7, 1, 2}, {8, 1, 1, 8, 1, 2}};
  }
}

std::string text_of(const Locations& locations) {
  std::ostringstream text;
  for (const auto& [source, sample] : locations) text << source << " " << sample << " ";
  return text.str();
}

Locations locations_of(const std::string& text) {
  Locations locations;
  std::istringstream numbers(text);
  for (Mixture::Location location{}; numbers >> location.source >> location.sample;) locations.push_back(location);
  return locations;
}

class SampleOrder : public ::testing::Test {
 protected:
  SampleOrder() {
    if (world().rank() == 0) {
      write_source("a.bin", 11);
      write_source("b.bin", 40);
      write_source("c.bin", 7);
    }
    world().barrier();
  }

  void write_source(const std::string& name, int64_t samples) const {
    std::mt19937_64 random(static_cast<uint64_t>(samples));
    std::ofstream file(folder_.path() / name, std::ios::binary);
    for (int64_t i = 0; i < samples * 33; ++i) {
      const auto id = static_cast<uint16_t>(random() % 97);
      file.write(reinterpret_cast<const char*>(&id), sizeof id);
    }
  }

  Recipe recipe(const Part& part, bool shuffle) const {
    const Variant variant{"llama", false, "mha", "none", "one", "fp32", "adamw"};
    const Cell cell{variant, part.dp, part.tp, part.cp, part.cp > 1 ? "ring" : "none", "contiguous", part.tp > 1, 1};
    Recipe recipe = recipe_of(cell, world().size() == 1, folder_.path());
    recipe.data = {};
    for (const auto& [name, weight] : {std::pair("a.bin", 0.5), {"b.bin", 2.0}, {"c.bin", 1.0}}) {
      MixedSource& source = recipe.data.mixture.emplace_back();
      source.tokens = folder_.path() / name;
      source.weight = weight;
      source.shuffle = shuffle;
    }
    recipe.train.global_batch = part.global_batch;
    recipe.train.micro_batch = part.micro_batch;
    return recipe;
  }

  /// Returns the samples of this part's steps, step by step and in the order of dp ranks, on rank 0. tp and cp peers
  /// must have read the same samples.
  static Locations list(Training& training, const Part& part) {
    Locations all;
    const MeshLayout layout({{"dp", part.dp}, {"cp", part.cp}, {"tp", part.tp}});
    for (int64_t step = 0; step < part.steps; ++step) {
      training.run(1);
      const std::vector<std::string> texts = gather_texts(world(), text_of(training.samples().take_list()));
      std::vector<std::string> of_dp(static_cast<size_t>(part.dp));
      for (size_t rank = 0; rank < texts.size(); ++rank) {
        std::string& known = of_dp[static_cast<size_t>(layout.coordinate(static_cast<int64_t>(rank), "dp"))];
        EXPECT_TRUE(known.empty() || known == texts[rank]) << "rank " << rank;
        known = texts[rank];
      }
      for (const std::string& text : of_dp) {
        const Locations locations = locations_of(text);
        all.insert(all.end(), locations.begin(), locations.end());
      }
    }
    return all;
  }

  const ScratchFolder folder_{world()};
};

TEST_F(SampleOrder, IsOneListAcrossMeshesAndBatches) {
  for (const bool shuffle : {false, true}) {
    Locations all;
    for (const Part& part : parts()) {
      Training training(recipe(part, shuffle), world());
      const std::filesystem::path run = folder_.path() / (shuffle ? "shuffled" : "in order");
      if (std::filesystem::exists(run)) training.resume(run);
      const Locations locations = list(training, part);
      all.insert(all.end(), locations.begin(), locations.end());
      training.save(run);
      world().barrier();
    }
    if (world().rank() != 0) continue;
    const ListedSamples samples(recipe(parts().front(), shuffle));
    Locations wanted;
    for (size_t g = 0; g < all.size(); ++g) wanted.push_back(samples.mixture().locate(static_cast<int64_t>(g)));
    EXPECT_EQ(text_of(all), text_of(wanted));
    EXPECT_GT(all.size(), 25u);

    std::vector<std::vector<int64_t>> of_source(3);
    for (const auto& [source, sample] : all) of_source.at(source).push_back(sample);
    for (size_t i = 0; i < 3; ++i) {
      const int64_t n = samples.mixture().sources()[i].num_samples();
      std::vector<int64_t> uses(static_cast<size_t>(n));
      for (size_t k = 0; k < of_source[i].size(); ++k) {
        const auto before = static_cast<int64_t>(k) / n;  // completed epochs of the source
        EXPECT_EQ(uses.at(static_cast<size_t>(of_source[i][k]))++, before) << "a sample was repeated or left out";
      }
    }
  }
}

TEST_F(SampleOrder, OtherDataAreRefusedByName) {
  const Part part = parts().front();
  Training training(recipe(part, true), world());
  training.run(1);
  training.save(folder_.path() / "run");
  const auto refusal = [&](const std::function<void(DataOptions&)>& change) {
    Recipe changed = recipe(part, true);
    change(changed.data);
    try {
      Training(changed, world()).resume(folder_.path() / "run");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto has = [](const std::string& text, const std::string& part_of) {
    return text.find(part_of) != std::string::npos;
  };
  EXPECT_EQ(refusal([](DataOptions&) {}), "");
  EXPECT_TRUE(has(refusal([](DataOptions& data) { data.mixture[1].weight = 3; }), "data.mixture[1].weight: 3, was 2"));
  EXPECT_TRUE(has(refusal([](DataOptions& data) { data.mixture.pop_back(); }), "data.mixture[2]: none, was /"));
  EXPECT_TRUE(has(refusal([](DataOptions& data) { std::swap(data.mixture[0].tokens, data.mixture[2].tokens); }),
                  "data.mixture[0].tokens: a file of 462 bytes with checksum "));
  world().barrier();
  const std::filesystem::path moved = folder_.path() / "elsewhere.bin";
  if (world().rank() == 0) std::filesystem::copy(folder_.path() / "b.bin", moved);
  world().barrier();
  EXPECT_EQ(refusal([&](DataOptions& data) { data.mixture[1].tokens = moved; }), "") << "where files lie may change";
}

}  // namespace
}  // namespace meshtrain::testing

#include "tests/matrix/cell.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <set>

namespace meshtrain::testing {
namespace {

constexpr int64_t kVocabulary = 97;  // divides by no number of ranks
constexpr int64_t kSequence = 32;
constexpr int64_t kGlobalBatch = 16;
constexpr int64_t kSteps = 3;

std::vector<std::string> factors_of(const Cell& cell) {
  return {cell.layout,
          cell.sequence_parallel ? "sp" : "-",
          "acc=" + std::to_string(cell.accumulation),
          cell.variant.family,
          cell.variant.tied ? "tied" : "-",
          cell.variant.grouped ? "gqa" : "-",
          cell.variant.ignored,
          cell.variant.precision,
          cell.variant.optimizer};
}

std::string mesh_of(const Cell& cell) {
  return "dp=" + std::to_string(cell.dp) + ",tp=" + std::to_string(cell.tp) + ",cp=" + std::to_string(cell.cp);
}

using Pair = std::tuple<size_t, std::string, size_t, std::string>;

std::set<Pair> pairs_of(const Cell& cell) {
  const std::vector<std::string> factors = factors_of(cell);
  std::set<Pair> pairs;
  for (size_t a = 0; a < factors.size(); ++a) {
    for (size_t b = a + 1; b < factors.size(); ++b) pairs.insert({a, factors[a], b, factors[b]});
  }
  return pairs;
}

std::vector<Cell> cover_of_one_mesh(std::vector<Cell> candidates, std::mt19937_64& generator) {
  std::shuffle(candidates.begin(), candidates.end(), generator);
  std::set<Pair> missing;
  for (const Cell& cell : candidates) missing.merge(pairs_of(cell));
  std::vector<Cell> cover;
  while (!missing.empty()) {
    const auto gain = [&](const Cell& cell) {
      const std::set<Pair> pairs = pairs_of(cell);
      return std::count_if(pairs.begin(), pairs.end(), [&](const Pair& pair) { return missing.count(pair) > 0; });
    };
    const Cell best = *std::max_element(candidates.begin(), candidates.end(),
                                        [&](const Cell& a, const Cell& b) { return gain(a) < gain(b); });
    for (const Pair& pair : pairs_of(best)) missing.erase(pair);
    cover.push_back(best);
  }
  return cover;
}

}  // namespace

std::string Cell::describe() const {
  std::string text = mesh_of(*this);
  for (const std::string& factor : factors_of(*this)) {
    if (factor != "-") text += " " + factor;
  }
  return text;
}

std::vector<Cell> all_cells(int64_t num_ranks) {
  std::vector<Variant> variants;
  for (const char* family : {"llama", "qwen2", "qwen3"})
    for (bool tied : {false, true})
      for (bool grouped : {false, true})
        for (const char* ignored : {"none", "uneven"})
          for (const char* precision : {"fp64", "fp32"}) {
            variants.push_back({family, tied, grouped, ignored, precision, ""});
          }

  // The optimizer is no factor of its own: cells take turns, so that each of the three meets every other value.
  const std::vector<std::string> optimizers = {"adamw", "adamw-unclipped", "sgd"};
  std::vector<Cell> cells;
  for (int64_t dp = 1; dp <= num_ranks; ++dp) {
    for (int64_t tp = 1; dp * tp <= num_ranks; ++tp) {
      const int64_t cp = num_ranks / (dp * tp);
      if (dp * tp * cp != num_ranks) continue;
      for (Variant variant : variants)
        for (const char* layout : {"contiguous", "zigzag"})
          for (bool sequence_parallel : {false, true})
            for (int64_t accumulation : {1, 2}) {
              if (cp == 1 && layout != std::string("contiguous")) continue;
              if (tp == 1 && sequence_parallel) continue;
              variant.optimizer = optimizers[cells.size() % optimizers.size()];
              cells.push_back({variant, dp, tp, cp, layout, sequence_parallel, accumulation});
            }
    }
  }
  return cells;
}

std::vector<Cell> pairwise_cover(const std::vector<Cell>& cells, uint64_t seed) {
  std::map<std::string, std::vector<Cell>> by_mesh;
  for (const Cell& cell : cells) by_mesh[mesh_of(cell)].push_back(cell);
  std::mt19937_64 generator(seed);
  std::vector<Cell> cover;
  for (auto& [mesh, candidates] : by_mesh) {
    for (Cell& cell : cover_of_one_mesh(std::move(candidates), generator)) cover.push_back(std::move(cell));
  }
  return cover;
}

Recipe recipe_of(const Cell& cell, bool alone, const std::filesystem::path& folder) {
  Recipe recipe;
  recipe.name = "cell";
  ModelShape& shape = recipe.model.shape;
  shape.family = cell.variant.family;
  shape.hidden_size = 64;
  shape.intermediate_size = 80;
  shape.num_hidden_layers = 2;
  shape.num_attention_heads = cell.variant.grouped ? 16 : 8;  // at least one KV head for each of 8 tp ranks
  shape.num_key_value_heads = 8;
  shape.head_dim = 8;
  shape.vocab_size = kVocabulary;
  shape.initializer_range = 0.1;
  shape.tie_word_embeddings = cell.variant.tied;
  shape.qkv_bias = cell.variant.family == "qwen2";
  shape.qk_norm = cell.variant.family == "qwen3";

  const int64_t dp = alone ? 1 : cell.dp;
  if (!alone) recipe.parallel.mesh = {{"dp", cell.dp}, {"tp", cell.tp}, {"cp", cell.cp}};
  recipe.parallel.sequence_parallel = cell.sequence_parallel && !alone ? "on" : "off";
  recipe.parallel.context = {"all_gather", alone ? "contiguous" : cell.layout};

  recipe.data.tokens = folder / "tokens.bin";
  if (cell.variant.ignored == "uneven") recipe.data.loss_mask = folder / "mask.bin";

  recipe.train.sequence_length = kSequence;
  recipe.train.global_batch = kGlobalBatch;
  recipe.train.micro_batch = alone ? kGlobalBatch : kGlobalBatch / (dp * cell.accumulation);
  recipe.train.steps = kSteps;
  recipe.train.precision = cell.variant.precision;
  recipe.train.clip_norm = cell.variant.optimizer == "adamw-unclipped" ? 0 : 0.5;

  recipe.optimizer.name = cell.variant.optimizer == "sgd" ? "sgd" : "adamw";
  recipe.optimizer.learning_rate = cell.variant.optimizer == "sgd" ? 0.1 : 1e-3;
  recipe.optimizer.eps = 1e-6;  // above fp32's noise in gradients, which 1e-8 would turn into whole steps
  recipe.optimizer.weight_decay = 0.1;
  recipe.optimizer.decay = cell.variant.tied ? "all" : "matrices";
  return recipe;
}

void write_tokens(const std::filesystem::path& folder) {
  std::mt19937_64 generator(7);
  std::ofstream tokens(folder / "tokens.bin", std::ios::binary), mask(folder / "mask.bin", std::ios::binary);
  for (int64_t sample = 0; sample < kGlobalBatch * kSteps; ++sample) {
    for (int64_t position = 0; position <= kSequence; ++position) {
      const uint16_t id = static_cast<uint16_t>(generator() % kVocabulary);
      tokens.write(reinterpret_cast<const char*>(&id), sizeof id);
      // A quarter of the samples counts nowhere, another only in its first quarter: with many ranks some count none.
      const bool counts = sample % 4 == 1 ? false : sample % 4 == 2 ? position <= kSequence / 4 : generator() % 5 != 0;
      mask.put(counts ? 1 : 0);
    }
  }
}

}  // namespace meshtrain::testing

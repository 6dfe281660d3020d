#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/recipe.h"

namespace meshtrain::testing {

/// What varies besides the mesh: the model, its data and how it is trained. One-rank results depend on it alone.
struct Variant {
  std::string family;  ///< llama qwen2 qwen3
  bool tied;
  bool grouped;         ///< grouped-query attention instead of one KV head per head
  std::string ignored;  ///< none, uneven: counts of counted labels differ between ranks, some have none
  std::string precision;
  std::string optimizer;  ///< adamw, adamw without clipping, sgd

  auto operator<=>(const Variant&) const = default;
};

struct Cell {
  Variant variant;
  int64_t dp, tp, cp;
  std::string layout;  ///< contiguous zigzag
  bool sequence_parallel;
  int64_t accumulation;  ///< micro-batches a step

  /// "dp=2,tp=2,cp=2 zigzag sp acc=2 qwen3 tied gqa uneven fp64 sgd": for messages and for the list of a run.
  std::string describe() const;
};

/// Every cell for `num_ranks` ranks.
std::vector<Cell> all_cells(int64_t num_ranks);

/// For each mesh a few cells of `cells` in which every pair of values of two factors occurs that occurs in `cells`.
/// Greedy; the order of candidates is drawn from `seed`, so the cover is the same on every rank.
std::vector<Cell> pairwise_cover(const std::vector<Cell>& cells, uint64_t seed);

/// The recipe of a cell, or with `alone` that of the same training on one rank. `tokens` and `mask` come from
/// write_tokens().
Recipe recipe_of(const Cell& cell, bool alone, const std::filesystem::path& folder);

/// Token and mask files that every cell uses, written to `folder`. Call on one rank.
void write_tokens(const std::filesystem::path& folder);

}  // namespace meshtrain::testing

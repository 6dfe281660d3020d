#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/program/recipe/recipe.h"

namespace meshtrain::testing {

/// The factors besides the mesh: the model, its data and its training. One-rank results depend only on these.
struct Variant {
  std::string family;  ///< a Family's name; choose_pieces() says what its models have
  bool tied;
  std::string heads;             ///< mha (8 on 8), gqa (16 on 8), few (16 on 2: fewer KV heads than ranks)
  std::string ignored;           ///< none, uneven: counts of counted labels differ between ranks, some have none
  std::string documents;         ///< one, packed, or ignored: packed, with ignored labels across boundaries
  std::string precision;         ///< that of a recipe; with + the residual stream and reductions are in fp32
  std::string optimizer;         ///< adamw, adamw without clipping, sgd, muon
  std::string frozen = "none";   ///< none; bottom: embedding and first block; top: last block, norm and head; or parts:
                                 ///< some fused and normed parameters
  bool groups = false;           ///< groups with their own learning rate and weight decay
  std::string adapter = "none";  ///< none; all: adapters with dropout on every layer of blocks, norms trained; layers:
                                 ///< on one block; qv: on queries and values; ends: with dropout on embedding and head
  int64_t layers = 2;            ///< number of blocks
  std::string balance = "none";  ///< of experts: a word of train.experts.balance; others than none with a z-loss
  int64_t micro_batch = 0;       ///< of one rank, where numbers depend on it; 0: the global batch

  auto operator<=>(const Variant&) const = default;
};

struct Cell {
  Variant variant;
  int64_t dp, tp, cp;
  std::string algorithm;  ///< ring all_gather ulysses; none for cp=1
  std::string layout;     ///< contiguous zigzag
  bool sequence_parallel;
  int64_t accumulation;               ///< micro-batches per step
  std::string sharding = "no_shard";  ///< mode of fsdp; with "+": keeps parameters until the backward, reduces
                                      ///< gradients once per step, cuts units over dp only, puts both blocks into one
                                      ///< unit unless units are sublayers
  std::string recompute =
      "none";  ///< activation checkpointing: none, full, selective, or alternate: full for every second block
  std::string unit = "block";     ///< of fsdp: block or sublayer
  int64_t pp = 1;                 ///< ranks of a pipeline
  std::string schedule = "1f1b";  ///< of the pipeline: 1f1b, interleaved with two stages on each rank, or zb_h1
  int64_t ep = 1;                 ///< ranks over which experts are cut

  /// Describes the cell for messages and the list of a run: "dp=2,tp=2,cp=2 ring zigzag sp acc=2 full qwen3 tied gqa
  /// uneven packed fp64 sgd".
  std::string describe() const;
};

/// Returns the value of each factor, in the same order for all cells; the mesh is the first.
std::vector<std::string> factors_of(const Cell& cell);
/// Returns those of the product of pipeline_cells().
std::vector<std::string> pipeline_factors_of(const Cell& cell);

/// Returns every cell for `num_ranks` ranks. They come from three products of factors; the other factors are drawn for
/// each cell from a fixed seed, so that each of their values meets every other:
///   mesh x layout x sequence parallel x accumulation x a third of the families x tied x mha, gqa x ignored x
///   precision;
///   with cp >= 2, tp and dp <= 2: mesh x algorithm x layout x packed or not x sequence parallel x mha, few x
///   precision;
///   with dp x cp >= 2: mesh x sharding x accumulation x tied x precision.
/// Every third cell in fp64 has a family with experts, cut over each ep that divides them and the ranks of a stage in
/// turns. Precision is fp64, fp32 and, in the last two, once and twice one
/// drawn of bf16, bf16_mixed and fp16_mixed.
std::vector<Cell> all_cells(int64_t num_ranks);

/// Returns cells with pipelines for `num_ranks` ranks, from one product: mesh x schedule x sharding (where dp x
/// cp >= 2) x tied or not x precision. Other factors are drawn.
std::vector<Cell> pipeline_cells(int64_t num_ranks);

/// Returns the values of a cell's factors.
using Factors = std::function<std::vector<std::string>(const Cell&)>;

/// Returns a small subset of the cells that has every pair of values of two factors that occurs in all cells. The
/// algorithm is greedy; `seed` decides the order of candidates, so the cover is the same on every rank.
std::vector<Cell> pairwise_cover(std::vector<Cell> candidates, uint64_t seed,
                                 const Factors& factors_of = meshtrain::testing::factors_of);

/// Returns the recipe of a cell, or with `alone` the recipe of the same training on one rank. `tokens` and `mask` come
/// from write_tokens().
Recipe recipe_of(const Cell& cell, bool alone, const std::filesystem::path& folder);

/// Writes the token and mask files that every cell uses to `folder`. Call on one rank.
void write_tokens(const std::filesystem::path& folder);

}  // namespace meshtrain::testing

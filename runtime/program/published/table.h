#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// A published training run: a row of a table such as published_runs.csv, or a recipe with the section `documented`.
/// Members have the names of the table's columns.
struct PublishedRun {
  std::string location = {};  ///< "runs.csv:7"
  std::string id, source, model, system;
  int64_t gpus = 0, dp = 0, tp = 0, cp = 0, sequence = 0;
  std::string sharding;                    ///< no_shard shard_optimizer shard_grad_op full_shard hybrid_shard
  std::optional<int64_t> shard_size = {};  ///< of hybrid_shard
  std::optional<int64_t> micro_batch = {}, global_batch = {};
  std::string precision;      ///< fp8: linear layers in fp8, else as bf16_mixed
  std::string checkpointing;  ///< none selective full
  std::string compiled;       ///< no: eager; yes: torch.compile; fused: Megatron's kernels
  std::optional<double> value = {};
  std::string unit;                           ///< tok/s/gpu, s/step, or TFLOP/s full or causal; empty without value
  std::optional<double> memory_gib = {};      ///< peak of a GPU
  std::optional<bool> fits = {};              ///< where the column says only "fits" or "out of memory"
  ModelShape shape = {};                      ///< of the model
  std::shared_ptr<const Recipe> recipe = {};  ///< the documented recipe; null: recipe_of() makes one of the row

  /// Returns the source without its part, which follows a comma.
  std::string publication() const { return source.substr(0, source.find(',')); }
};

/// Reads a table of published runs: comma-separated values with a line of column names, in any order. Throws InputError
/// that begins with file, line and column for anything that a PublishedRun cannot have.
std::vector<PublishedRun> read_published_table(const std::filesystem::path& file);

}  // namespace meshtrain

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tensor_parallel/adapter.h"

namespace meshtrain {

/// The adapters of a model's linear layers and of its embedding (LoRA), with PEFT's names and meanings. Members are
/// named like the keys of a recipe.
struct AdapterShape {
  /// The first values of A: uniform within 1 / sqrt(in), or normal with a deviation of 1 / rank. For each of them the
  /// embedding's A begins as zeros, and its B as normal with a deviation of 1.
  enum class Init { Kaiming, Gaussian };

  int64_t rank = 0;  ///< 0: the model has no adapters
  double alpha = 8;
  bool use_rslora = false;  ///< scales by alpha / sqrt(rank) instead of alpha / rank
  double dropout = 0;       ///< probability that an input feature of an adapter is zero in training
  Init init = Init::Kaiming;
  /// Names of layers ("q_proj"), globs for their full names, or "all-linear": all linear layers but the head.
  std::vector<std::string> targets = {};
  std::vector<int64_t> layers = {};     ///< blocks with adapters, which then are on blocks alone; empty: all
  std::vector<std::string> train = {};  ///< globs for the base's parameters that are trained too
  uint64_t seed = 0;                    ///< of dropout
  bool draws_all = false;               ///< both factors begin with random values: beside zeros one has no gradient
  std::filesystem::path from = {};      ///< folder of PEFT with the first values; empty: they are drawn

  explicit operator bool() const { return rank > 0; }
  bool operator==(const AdapterShape&) const = default;
};

/// The layers outside blocks that may have an adapter.
inline constexpr const char* kEmbeddingLayer = "model.embed_tokens";
inline constexpr const char* kHeadLayer = "lm_head";

/// Returns the options of the adapter of the layer `name`, "model.layers.0.self_attn.q_proj"; none: it has no adapter.
/// `input`: a name for the layer's input, shared by the layers that have the same input.
std::optional<AdapterOptions> adapter_of(const AdapterShape& shape, const std::string& name, const std::string& input,
                                         int64_t in_features);

/// Returns the factor of the adapters' outputs: alpha / rank, or alpha / sqrt(rank).
double adapter_scale(const AdapterShape& shape);

/// Returns true for a parameter of an adapter.
bool is_adapter(const std::string& parameter);

/// The names of the factors beside a weight.
struct AdapterNames {
  std::string a, b;
};
/// Returns the names of the factors that an adapter of the layer of `weight` has, "model.layers.0.mlp.up_proj.weight".
/// Empty names for a bias, which an adapter does not change.
AdapterNames adapter_names(const std::string& weight);

/// Returns true when an adapter of `shape` is on the embedding.
bool adapts_embedding(const AdapterShape& shape);

/// Returns true when an adapter of `shape` is on the embedding or the head. If they are tied, they cannot be merged
/// into one weight.
bool adapts_vocabulary(const AdapterShape& shape);

/// Returns weight + scale B A, in fp32, or fp64 for a weight in fp64. weight: [out, in]; a: [rank, in]; b: [out, rank].
/// `name`: of the weight. For the embedding: weight + scale A B^T, with a: [V, rank].
at::Tensor merged(const AdapterShape& shape, const std::string& name, const at::Tensor& weight, const at::Tensor& a,
                  const at::Tensor& b);

/// Returns true when a parameter is trained: one of an adapter, or of the base of a model without adapters, or one that
/// `train` matches; in each case unless `freeze` matches it.
bool is_trained(const AdapterShape& shape, const std::vector<std::string>& freeze, const std::string& parameter);

}  // namespace meshtrain

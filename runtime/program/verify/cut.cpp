#include "runtime/program/verify/cut.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "runtime/program/recipe/mesh_size.h"

namespace meshtrain {
namespace {

constexpr int64_t kTokens = 256, kMicroBatch = 2, kMicroBatches = 2, kStages = 2;

/// Returns the number of ranks of dp, cp and tp, which ep divides.
int64_t ranks_of_experts(const Recipe& recipe) {
  return known_size(recipe, kDataAxis) * known_size(recipe, kContextAxis) * known_size(recipe, kTensorAxis);
}

/// Returns the largest power of two up to `n`.
int64_t power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
}

void cut_mesh(Recipe& recipe, int64_t ranks) {
  std::map<std::string, int64_t>& mesh = recipe.parallel.mesh;
  const int64_t ep = known_size(recipe, kExpertAxis);
  const bool has_copies = ep < ranks_of_experts(recipe);
  int64_t left = ranks;
  for (const char* axis : {kTensorAxis, kContextAxis, kPipelineAxis}) {
    const int64_t size = known_size(recipe, axis) > 1 && left > 1 ? 2 : 1;
    if (mesh.contains(axis)) mesh[axis] = size;
    left /= size;
  }
  mesh[kDataAxis] = power_of_two(std::min(known_size(recipe, kDataAxis), left));
  if (ep == 1) return;
  const int64_t ranks_left = ranks_of_experts(recipe);
  mesh[kExpertAxis] = std::gcd(ep, has_copies && ranks_left > 2 ? ranks_left / 2 : ranks_left);
}

/// Keeps the first and the last of the numbers of layers, `stages` in all.
void cut_stages(Recipe& recipe) {
  PipelineRecipe& pipeline = recipe.parallel.pipeline;
  pipeline.stages_per_rank = std::min(pipeline.stages_per_rank, kStages);
  const auto stages = static_cast<size_t>(known_size(recipe, kPipelineAxis) * pipeline.stages_per_rank);
  std::vector<int64_t>& layers = pipeline.layers;
  if (layers.size() <= stages) return;
  const auto begin = layers.begin() + static_cast<std::ptrdiff_t>(stages / 2);
  layers.erase(begin, layers.end() - static_cast<std::ptrdiff_t>(stages - stages / 2));
  recipe.model.shape.num_hidden_layers = std::accumulate(layers.begin(), layers.end(), int64_t{0});
}

void cut_sequence(Recipe& recipe) {
  const int64_t before = recipe.train.sequence_length, now = std::min(before, kTokens);
  recipe.train.sequence_length = now;
  int64_t& window = recipe.model.shape.sliding_window;
  if (window > 0 && now < before) window = std::max<int64_t>(1, window * now / before);
}

void cut_batch(Recipe& recipe, int64_t dp_before) {
  const int64_t micro_batches = recipe.train.global_batch / dp_before / recipe.train.micro_batch;
  const int64_t pp = known_size(recipe, kPipelineAxis);
  const int64_t most = pp > 1 ? 2 * pp : kMicroBatches;
  recipe.train.micro_batch = std::min(recipe.train.micro_batch, kMicroBatch);
  recipe.train.global_batch =
      std::clamp<int64_t>(micro_batches, 1, most) * recipe.train.micro_batch * known_size(recipe, kDataAxis);
}

}  // namespace

Recipe cut(const Recipe& recipe, int64_t ranks) {
  Recipe small = recipe;
  const int64_t dp = known_size(recipe, kDataAxis);
  if (ranks_of(recipe.parallel.mesh) > ranks) {
    cut_mesh(small, ranks);
    cut_stages(small);
    std::optional<int64_t>& shared = small.parallel.fsdp.shard_size;
    const int64_t replicas = known_size(small, kDataAxis) * known_size(small, kContextAxis);
    if (shared) *shared = std::min(*shared, std::max<int64_t>(1, replicas / 2));
  }
  cut_sequence(small);
  cut_batch(small, dp);
  return small;
}

}  // namespace meshtrain

#include "runtime/program/recipe/pipeline.h"

#include <algorithm>
#include <numeric>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "pipeline_parallel/stage_balance.h"
#include "runtime/program/recipe/sharding.h"
#include "runtime/program/yaml/rule.h"
#include "runtime/training/model/adapter_shape.h"
#include "runtime/training/model/flops.h"
#include "runtime/training/model/folder_tensors.h"

namespace meshtrain {
namespace {

const WordsOf<ScheduleKind> kSchedules = {{"1f1b", ScheduleKind::OneForwardOneBackward},
                                          {"interleaved", ScheduleKind::Interleaved},
                                          {"zb_h1", ScheduleKind::ZeroBubble}};

ScheduleKind schedule_of(const PipelineRecipe& asked) {
  if (asked.schedule != "auto") return value_of(kSchedules, asked.schedule);
  return asked.stages_per_rank > 1 ? ScheduleKind::Interleaved : ScheduleKind::OneForwardOneBackward;
}

/// Returns the operations of each layer for a token, the embedding first and the head last.
std::vector<double> flops_of_layers(const Recipe& recipe) {
  Transformer model(recipe.model.shape, {}, at::TensorOptions(at::kMeta));
  return layer_flops(model, recipe.model.shape, recipe.train.sequence_length);
}

/// Returns the blocks of each of `stages` stages, so that the most expensive one costs as little as possible.
std::vector<int64_t> divided_by_cost(const Recipe& recipe, int64_t stages) {
  const std::vector<double> all = flops_of_layers(recipe);
  return balance_stages({all.begin() + 1, all.end() - 1}, stages, all.front(), all.back());
}

void check_count(const std::vector<int64_t>& layers, int64_t stages) {
  if (static_cast<int64_t>(layers.size()) == stages) return;
  throw InputError("parallel.pipeline.layers", "has " + counted(layers.size(), "number") + ", but the pipeline has " +
                                                   counted(stages, "stage") +
                                                   ": give the number of layers of each stage");
}

void check_sum(const std::vector<int64_t>& layers, int64_t blocks) {
  const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0});
  if (sum == blocks) return;
  throw InputError("parallel.pipeline.layers", "add up to " + std::to_string(sum) + ", but the model has " +
                                                   counted(blocks, "layer") + ": give each layer to one stage");
}

/// Throws InputError where the schedule cannot run so many stages a rank, on any mesh.
void check_kind(ScheduleKind kind, const PipelineRecipe& asked) {
  const int64_t per_rank = asked.stages_per_rank;
  if (kind != ScheduleKind::Interleaved && per_rank > 1) {
    throw InputError("parallel.pipeline.schedule",
                     asked.schedule + " has one stage on each rank, but " + Key{"parallel.pipeline.stages_per_rank"} +
                         " is " + std::to_string(per_rank) + ": use interleaved, or leave that key out");
  }
  if (kind == ScheduleKind::Interleaved && per_rank == 1) {
    throw InputError("parallel.pipeline.schedule",
                     "interleaved needs several stages on each rank: set parallel.pipeline.stages_per_rank to 2 or "
                     "more, or use 1f1b");
  }
}

/// Throws InputError for keys that fit no pipeline of this model, whichever mesh it has.
void check_keys(const PipelineRecipe& asked, int64_t blocks) {
  check_kind(schedule_of(asked), asked);
  if (!asked.layers.empty()) check_sum(asked.layers, blocks);
  if (2 * asked.stages_per_rank <= std::max<int64_t>(blocks, 2)) return;
  throw InputError("parallel.pipeline.stages_per_rank",
                   std::to_string(asked.stages_per_rank) + " makes " + counted(2 * asked.stages_per_rank, "stage") +
                       " with pp=2, but the model has only " + counted(blocks, "layer") + ": use fewer");
}

/// Throws InputError where the stages of several to a rank cannot take turns with so many micro-batches.
void check_rounds(const Recipe& recipe, const MeshLayout& layout) {
  const int64_t pp = layout.size(kPipelineAxis);
  const TrainRecipe& train = recipe.train;
  std::vector<BatchPhase> phases = train.phases;
  phases.push_back({.size = train.global_batch});
  const int64_t at_once = layout.size(kDataAxis) * train.micro_batch;
  const auto wrong =
      std::ranges::find_if(phases, [&](const BatchPhase& each) { return each.size / at_once % pp != 0; });
  if (wrong == phases.end()) return;
  throw InputError("parallel.pipeline.stages_per_rank",
                   "interleaved stages need a multiple of pp = " + std::to_string(pp) + " micro-batches, but " +
                       Key{"train.global_batch"} + " / dp / " + Key{"train.micro_batch"} + " = " +
                       std::to_string(wrong->size) + " / " + std::to_string(layout.size(kDataAxis)) + " / " +
                       std::to_string(train.micro_batch) + " = " + std::to_string(wrong->size / at_once) +
                       ": change the batch or the mesh, or use one stage a rank");
}

/// Throws InputError for a tied model whose embedding's gradient the ends of the pipeline cannot sum.
void check_tied(const Recipe& recipe, bool trained) {
  const ModelShape& shape = recipe.model.shape;
  if (!shape.tie_word_embeddings || !trained || !adapts_embedding(shape.adapter)) return;
  throw InputError("adapter.targets",
                   "the embedding is trained and has an adapter, and the head in another stage of the pipeline shares "
                   "its weight: leave one of the two out");
}

}  // namespace

PipelineChoice pipeline_choice(const Recipe& recipe, const MeshLayout& layout) {
  const int64_t pp = layout.size(kPipelineAxis);
  const PipelineRecipe& asked = recipe.parallel.pipeline;
  const int64_t stages = pp * asked.stages_per_rank, blocks = recipe.model.shape.num_hidden_layers;
  if (pp == 1) {
    check_keys(asked, blocks);
    return {};
  }
  if (stages > blocks) {
    throw InputError(
        "parallel.mesh",
        "pp=" + std::to_string(pp) +
            (asked.stages_per_rank > 1 ? " x stages_per_rank " + std::to_string(asked.stages_per_rank) : "") +
            " makes " + counted(stages, "stage") + ", but the model has only " + counted(blocks, "layer") +
            ": use a smaller pp" + (asked.stages_per_rank > 1 ? " or fewer stages a rank" : ""));
  }
  PipelineChoice choice{schedule_of(asked), asked.layers};
  check_kind(choice.schedule, asked);
  if (choice.schedule == ScheduleKind::Interleaved) check_rounds(recipe, layout);
  if (choice.blocks.empty()) choice.blocks = divided_by_cost(recipe, stages);
  check_count(choice.blocks, stages);
  check_sum(choice.blocks, blocks);
  return choice;
}

std::vector<double> stage_flops(const Recipe& recipe, const std::vector<int64_t>& blocks) {
  const std::vector<double> all = flops_of_layers(recipe);
  std::vector<double> stages;
  auto layer = all.begin() + 1;
  for (const int64_t count : blocks) {
    stages.push_back(std::accumulate(layer, layer + count, 0.0));
    layer += count;
  }
  stages.front() += all.front();
  stages.back() += all.back();
  return stages;
}

bool reduces_each_micro_batch(const Decisions& decisions) {
  const ShardingMode mode = decisions.sharding.mode;
  return (mode == ShardingMode::ShardGradOp || mode == ShardingMode::FullShard) && !decisions.fsdp.accumulate_unsharded;
}

void check_pipeline(const Recipe& recipe, const Decisions& decisions) {
  if (decisions.layout.size(kPipelineAxis) == 1) return;
  if (recipe.train.offload_activations && recipe.device != "cpu") {
    throw InputError("train.offload_activations",
                     "is not possible with pp: several micro-batches are in flight on each rank; leave it out, or use "
                     "train.activation_checkpointing");
  }
  check_tied(recipe, is_trained(recipe.model.shape.adapter, decisions.freeze, kEmbedding));
  if (decisions.pipeline.schedule != ScheduleKind::ZeroBubble || !reduces_each_micro_batch(decisions)) return;
  throw InputError("parallel.fsdp.no_sync", describe(decisions.sharding) +
                                                " reduces gradients in the backward of each micro-batch, but zb_h1 "
                                                "computes some later: set it to true, or use " +
                                                Key{"parallel.pipeline.schedule"} + " 1f1b");
}

std::string name(ScheduleKind kind) {
  return word_of(kSchedules, kind);
}

std::string describe(const PipelineChoice& choice) {
  std::vector<std::string> counts;
  for (const int64_t count : choice.blocks) counts.push_back(std::to_string(count));
  const bool is_even = std::ranges::adjacent_find(choice.blocks, std::not_equal_to()) == choice.blocks.end();
  return name(choice.schedule) + " over " + counted(counts.size(), "stage") + " of " +
         (is_even ? counted(choice.blocks.front(), "layer") : enumerated(counts) + " layers") +
         (choice.schedule == ScheduleKind::ZeroBubble ? ", weight gradients deferred" : "");
}

}  // namespace meshtrain

#include "runtime/program/recipe/pipeline_notes.h"

#include <cmath>

#include "mesh/base/size_text.h"
#include "pipeline_parallel/simulate_schedule.h"
#include "runtime/program/recipe/pipeline.h"

namespace meshtrain {
namespace {

int64_t num_micro_batches(const Recipe& recipe, const MeshLayout& layout) {
  return recipe.train.global_batch / layout.size(kDataAxis) / recipe.train.micro_batch;
}

/// Returns the bubble of a step as a whole number of percent.
long bubble_percent(const Recipe& recipe, const Decisions& decisions) {
  const auto pp = static_cast<int>(decisions.layout.size(kPipelineAxis));
  const PipelineChoice& choice = decisions.pipeline;
  std::vector<StageSeconds> stages;
  for (const double flops : stage_flops(recipe, choice.blocks)) stages.push_back({flops / 3, flops / 3, flops / 3});
  const PipelineSchedule schedule = make_schedule(choice.schedule, pp, static_cast<int>(choice.blocks.size()) / pp,
                                                  static_cast<int>(num_micro_batches(recipe, decisions.layout)));
  return std::lround(100 * simulate_schedule(schedule, stages).bubble());
}

/// Returns "layers 0-6, 7-14 and 15-22" for the numbers of layers of the stages.
std::string layers_text(const std::vector<int64_t>& blocks) {
  std::vector<std::string> ranges;
  int64_t first = 0;
  for (const int64_t count : blocks) {
    const int64_t last = first + count - 1;
    ranges.push_back(std::to_string(first) + (last > first ? "-" + std::to_string(last) : ""));
    first = last + 1;
  }
  return "layers " + enumerated(ranges);
}

/// Returns the keys of parallel.pipeline that have other values than their defaults.
std::vector<std::string> keys_set(const PipelineRecipe& asked) {
  std::vector<std::string> keys;
  if (asked.schedule != "auto") keys.emplace_back("parallel.pipeline.schedule");
  if (asked.stages_per_rank > 1) keys.emplace_back("parallel.pipeline.stages_per_rank");
  if (!asked.layers.empty()) keys.emplace_back("parallel.pipeline.layers");
  return keys;
}

}  // namespace

std::string pipeline_summary(const Recipe& recipe, const Decisions& decisions) {
  const PipelineChoice& choice = decisions.pipeline;
  if (choice.blocks.empty()) return "";
  std::string text = "pipeline " + name(choice.schedule) + ": " + counted(choice.blocks.size(), "stage") + " with " +
                     layers_text(choice.blocks) + "; " +
                     counted(num_micro_batches(recipe, decisions.layout), "micro-batch", "micro-batches") +
                     " a step, expected bubble " + std::to_string(bubble_percent(recipe, decisions)) + " %";
  if (decisions.layout.size(kDataAxis) * decisions.layout.size(kContextAxis) == 1) return text;
  return text + "; gradients are reduced " +
         (reduces_each_micro_batch(decisions)
              ? "with each micro-batch (parallel.fsdp.no_sync: true reduces them once a step)"
              : "once a step");
}

std::vector<std::string> pipeline_warnings(const Recipe& recipe, const Decisions& decisions) {
  if (decisions.pipeline.blocks.empty()) {
    const std::vector<std::string> keys = keys_set(recipe.parallel.pipeline);
    if (keys.empty()) return {};
    return {enumerated(keys) + (keys.size() > 1 ? " have" : " has") + " no effect: mesh " +
            decisions.layout.describe() + " has no pp"};
  }
  if (num_micro_batches(recipe, decisions.layout) > 1) return {};
  return {"a step has 1 micro-batch, so the ranks of the pipeline wait for " +
          std::to_string(bubble_percent(recipe, decisions)) +
          " % of it: use a smaller train.micro_batch or a larger train.global_batch"};
}

}  // namespace meshtrain

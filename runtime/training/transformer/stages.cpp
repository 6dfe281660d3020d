#include "runtime/training/transformer/stages.h"

#include <algorithm>

namespace meshtrain {
namespace {

/// Returns the range of Transformer::layers() of each stage.
std::vector<Range> layers_of_stages(const PipelineChoice& pipeline) {
  std::vector<Range> stages;
  int64_t next = 0;
  for (size_t i = 0; i < pipeline.blocks.size(); ++i) {
    const int64_t embedding = i == 0 ? 1 : 0, head = i + 1 == pipeline.blocks.size() ? 1 : 0;
    const int64_t count = pipeline.blocks[i] + embedding + head;
    stages.push_back({next, count});
    next += count;
  }
  return stages;
}

}  // namespace

std::vector<Range> own_layers(const PipelineChoice& pipeline, const DeviceMesh& mesh) {
  const auto rank = static_cast<size_t>(mesh.coordinate(kPipelineAxis)),
             ranks = static_cast<size_t>(mesh.size(kPipelineAxis));
  const std::vector<Range> all = layers_of_stages(pipeline);
  std::vector<Range> own;
  for (size_t stage = rank; stage < all.size(); stage += ranks) {
    own.push_back(all[stage]);
  }
  return own;
}

int first_trained_stage(Transformer& model, const PipelineChoice& pipeline) {
  const std::vector<Layer> layers = model.layers();
  const auto is_trained = [](const Layer& layer) {
    return std::ranges::any_of(layer.parameters, [](const Parameter* each) { return each->tensor.requires_grad(); });
  };
  const auto first = std::ranges::find_if(layers, is_trained) - layers.begin();
  const std::vector<Range> stages = layers_of_stages(pipeline);
  const auto has_it = [&](const Range& stage) { return first < stage.offset + stage.numel; };
  const auto found = std::ranges::find_if(stages, has_it);
  return found == stages.end() ? 0 : static_cast<int>(found - stages.begin());
}

}  // namespace meshtrain

#include "runtime/trainer/sharded_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace meshtrain {

ShardedModel::ShardedModel(std::unique_ptr<Transformer> model, int64_t unit_layers, FsdpOptions options)
    : model_(std::move(model)) {
  std::vector<UnitSpec> units = make_units(unit_layers);
  fsdp_ = std::make_unique<Fsdp>(std::move(units), std::move(options));
}

std::vector<UnitSpec> ShardedModel::make_units(int64_t unit_layers) {
  const std::vector<Layer> layers = model_->layers();
  const auto num_blocks =
      static_cast<int64_t>(layers.size()) - 2;  // without the first, the embedding, and the last, the head
  const auto block = [&](int64_t index) -> const Layer& { return layers[static_cast<size_t>(index + 1)]; };
  const Layer& head = layers.back();

  std::vector<UnitSpec> units = {{layers.front().name, layers.front().parameters}};
  runs_.push_back({0, {layers.front()}});
  for (int64_t first = 0; first < num_blocks; first += unit_layers) {
    const int64_t last = std::min(first + unit_layers, num_blocks) - 1;
    UnitSpec unit{block(first).name, {}};
    if (last > first) unit.name = "blocks " + std::to_string(first) + " to " + std::to_string(last);
    Run run{units.size(), {}};
    for (int64_t index = first; index <= last; ++index) {
      const std::vector<Parameter*>& parameters = block(index).parameters;
      unit.parameters.insert(unit.parameters.end(), parameters.begin(), parameters.end());
      run.layers.push_back(block(index));
    }
    units.push_back(std::move(unit));
    runs_.push_back(std::move(run));
  }
  if (head.borrowed == nullptr) {
    runs_.push_back({units.size(), {head}});
    units.push_back({head.name, head.parameters});
  } else {
    runs_.push_back({0, {head}});
    UnitSpec& both = units.front();
    both.name += " and " + head.name;
    both.parameters.insert(both.parameters.end(), head.parameters.begin(), head.parameters.end());
    both.whole_step = true;
  }
  return units;
}

at::Tensor ShardedModel::forward(const at::Tensor& ids, const ForwardPass& pass) {
  at::Tensor x = ids;
  for (const Run& run : runs_) {
    x = fsdp_->run(run.unit, [&] {
      at::Tensor y = x;
      for (const Layer& layer : run.layers) y = layer.forward(y, pass);
      return y;
    });
  }
  return x;
}

at::Tensor ShardedModel::loss(const at::Tensor& ids, const at::Tensor& labels, const Sequence& sequence) {
  return forward(ids, {sequence, labels});
}

VocabularyLogits ShardedModel::next_logits(const at::Tensor& ids, const Sequence& sequence) {
  const at::NoGradGuard no_grad;
  std::optional<VocabularyLogits> logits;
  forward(ids, {sequence, {}, &logits});
  return std::move(*logits);
}

}  // namespace meshtrain

#include "runtime/training/transformer/sharded_model.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

bool is_block(const Layer& layer) {
  return !layer.sublayers.empty();
}

/// Prepares an embedding whose weight a head on another rank shares. Throws std::invalid_argument when its unit has
/// more trained parameters than the head's copy of the weight.
void begin_shared(const Layer& embedding, Parameter& weight) {
  if (weight.tensor.requires_grad() && embedding.parameters.size() > 1) {
    throw std::invalid_argument(
        "the embedding is trained and has an adapter, but the head of another stage shares its weight");
  }
  weight.written_by_layer = false;  // the head writes, lookups add
}

}  // namespace

ShardedModel::ShardedModel(std::shared_ptr<Transformer> model, Range layers, const UnitOptions& units,
                           ModelFsdp options)
    : model_(std::move(model)) {
  std::vector<UnitSpec> specs = make_units(layers, units);
  fsdp_ = std::make_unique<Fsdp>(std::move(specs), std::move(options.dense));
  make_experts(options.experts);
}

void ShardedModel::make_experts(const std::optional<FsdpOptions>& options) {
  std::vector<UnitSpec> units;
  for (const Run& run : runs_) {
    for (const Layer& layer : run.layers) {
      if (layer.experts.empty()) continue;
      layer.use_experts_in([this, unit = units.size()](const std::function<at::Tensor()>& compute) {
        return experts_->run(unit, compute);
      });
      units.push_back({"experts of " + layer.name, layer.experts});
    }
  }
  if (!units.empty()) experts_ = std::make_unique<Fsdp>(std::move(units), options.value());
}

void ShardedModel::offload_activations(at::Device device) {
  int64_t num_blocks = 0;
  for (const Run& run : runs_) num_blocks += std::ranges::count_if(run.layers, is_block);
  offload_.emplace(device, num_blocks);
}

std::vector<UnitSpec> ShardedModel::make_units(Range range, const UnitOptions& options) {
  if (options.sublayers && options.layers > 1) {
    throw std::invalid_argument("sublayers are units inside one block, but a unit has " +
                                std::to_string(options.layers) + " blocks: set UnitOptions::layers to 1");
  }
  const std::vector<Layer> all = model_->layers();  // the embedding, blocks, the head
  const auto num_layers = static_cast<int64_t>(all.size()), end = range.offset + range.numel;
  std::vector<UnitSpec> units;
  const auto add_unit = [&](std::string name, int64_t first, int64_t last) {
    UnitSpec unit{std::move(name), {}};
    Run run{units.size(), {all.begin() + first, all.begin() + last + 1}};
    for (const Layer& layer : run.layers) {
      unit.parameters.insert(unit.parameters.end(), layer.parameters.begin(), layer.parameters.end());
    }
    units.push_back(std::move(unit));
    runs_.push_back(std::move(run));
  };
  const Layer &embedding = all.front(), &head = all.back();
  const bool has_embedding = range.offset == 0, has_head = end == num_layers;
  if (head.borrowed != nullptr && has_embedding != has_head) shared_ = head.borrowed;
  if (has_embedding) {
    add_unit(embedding.name, 0, 0);
    if (shared_ != nullptr) begin_shared(embedding, *head.borrowed);
  } else if (shared_ != nullptr) {
    units.push_back({"copy of the " + embedding.name, {head.borrowed}, /*whole_step=*/true, /*is_copy=*/true});
  }
  const int64_t end_of_blocks = std::min(end, num_layers - 1);
  for (int64_t first = std::max<int64_t>(range.offset, 1); first < end_of_blocks; first += options.layers) {
    const Layer& block = all[static_cast<size_t>(first)];
    if (options.sublayers) {
      runs_.push_back({units.size(), {block}, /*by_sublayer=*/true});
      for (const Sublayer& sublayer : block.sublayers) units.push_back({sublayer.name, sublayer.parameters});
      continue;
    }
    const int64_t last = std::min(first + options.layers, end_of_blocks) - 1;
    const std::string several = "blocks " + std::to_string(first - 1) + " to " + std::to_string(last - 1);
    add_unit(last > first ? several : block.name, first, last);
  }
  if (!has_head) return units;
  if (head.borrowed == nullptr || shared_ != nullptr) {
    add_unit(head.name, num_layers - 1, num_layers - 1);
    runs_.back().uses_copy = shared_ != nullptr;
  } else {
    runs_.push_back({0, {head}});
    UnitSpec& both = units.front();
    both.name += " and " + head.name;
    both.parameters.insert(both.parameters.end(), head.parameters.begin(), head.parameters.end());
    both.whole_step = true;
  }
  return units;
}

at::Tensor ShardedModel::run_layers(const Run& run, const at::Tensor& x, const ForwardPass& pass) {
  return fsdp_->run(run.unit, [&] {
    at::Tensor y = x;
    for (const Layer& layer : run.layers) {
      y = compute(layer, pass, [&] { return layer.forward(y, pass); });
      end_layer(layer, y);
    }
    return y;
  });
}

at::Tensor ShardedModel::run(const Run& run, const at::Tensor& x, const ForwardPass& pass) {
  if (run.uses_copy) return fsdp_->run(0, [&] { return run_layers(run, x, pass); });
  if (!run.by_sublayer) return run_layers(run, x, pass);
  at::Tensor y;
  size_t unit = run.unit;
  const Layer& block = run.layers.front();
  for (const Sublayer& sublayer : block.sublayers) {
    y = fsdp_->run(unit++, [&] { return compute(block, pass, [&] { return sublayer.forward(x, y, pass); }); });
  }
  end_layer(block, y);
  return y;
}

at::Tensor ShardedModel::compute(const Layer& layer, const ForwardPass& pass, const std::function<at::Tensor()>& part) {
  if (!offload_ || !is_block(layer)) return part();
  const Sequence& sequence = pass.sequence;
  std::vector<at::Tensor> staying = {sequence.rotary.cos, sequence.rotary.sin, sequence.local_rotary.cos,
                                     sequence.local_rotary.sin};
  for (const auto& parameters : {layer.parameters, layer.experts}) {
    for (const Parameter* parameter : parameters) staying.push_back(parameter->tensor);
  }
  return offload_->compute(staying, part);
}

void ShardedModel::end_layer(const Layer& layer, const at::Tensor& y) {
  if (offload_ && is_block(layer)) offload_->end_block(y);
}

at::Tensor ShardedModel::forward(const at::Tensor& input, const ForwardPass& pass) {
  if (offload_) offload_->begin_forward();
  at::Tensor x = input;
  for (const Run& each : runs_) x = run(each, x, pass);
  return x;
}

VocabularyLogits ShardedModel::next_logits(const at::Tensor& ids, const Sequence& sequence) {
  const at::NoGradGuard no_grad;
  std::optional<VocabularyLogits> logits;
  forward(ids, {sequence, {}, &logits});
  return std::move(*logits);
}

void ShardedModel::gather_only() {
  const at::NoGradGuard no_grad;
  for (const Run& run : runs_) {
    const size_t num_units = run.by_sublayer ? run.layers.front().sublayers.size() : 1;
    for (size_t i = 0; i < num_units; ++i) fsdp_->run(run.unit + i, [] { return at::Tensor(); });
  }
}

}  // namespace meshtrain

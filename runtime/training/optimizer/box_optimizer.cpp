#include "runtime/training/optimizer/box_optimizer.h"

#include <utility>

#include "fsdp/shard_memory.h"
#include "mesh/device/aten.h"

namespace meshtrain {

BoxOptimizer::BoxOptimizer(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
                           const std::vector<std::string>& state_names)
    : Optimizer(groups) {
  for (const ParameterGroup& group : groups) {
    for (const FlatBuffer* buffer : trainable_buffers(group.fsdp->units())) {
      for (const auto& [range, rule] : update_ranges(*buffer, options)) {
        const auto boxes = [&, range = range](const at::Tensor& values) {
          return shard_boxes({"", buffer, range, values}, range);
        };
        Part part{buffer,
                  buffer->shard_values().narrow(0, range.offset, range.numel),
                  buffer->shard_gradients().narrow(0, range.offset, range.numel),
                  {},
                  {}};
        const std::vector<ShardBox> gradients = boxes(part.gradients);
        for (const ShardBox& own : boxes(part.values)) {
          part.boxes.push_back({own.parameter->name,
                                own.parameter->global_shape,
                                own.box,
                                rule,
                                own.values,
                                gradients[part.boxes.size()].values,
                                {}});
        }
        for (const std::string& name : state_names) {
          part.shard_state.push_back({name, buffer, range, zero_state(options, group, part.values)});
        }
        part.boxes = part.boxes_with(part.state());
        parts_.push_back(std::move(part));
      }
    }
  }
  std::vector<StatePager::State> state;
  for (const Part& part : parts_) state.push_back(part.state());
  pager_ = make_state_pager(groups, state, /*cuts=*/false);  // a box may be a complete matrix
}

std::vector<at::Tensor> BoxOptimizer::Part::tensors() const {
  std::vector<at::Tensor> all = {values, gradients};
  for (const ShardTensor& each : shard_state) all.push_back(each.values);
  return all;
}

StatePager::State BoxOptimizer::Part::state() const {
  StatePager::State all;
  for (const ShardTensor& each : shard_state) all.push_back(each.values);
  return all;
}

std::vector<ParameterBox> BoxOptimizer::Part::boxes_with(const StatePager::State& paged) const {
  std::vector<ParameterBox> all = boxes;
  for (ParameterBox& box : all) box.state.clear();
  for (size_t i = 0; i < paged.size(); ++i) {
    const Range range = shard_state[i].range;
    const std::vector<ShardBox> own = shard_boxes({"", buffer, range, paged[i]}, range);
    for (size_t box = 0; box < own.size(); ++box) all[box].state.push_back(own[box].values);
  }
  return all;
}

std::vector<ShardTensor> BoxOptimizer::state() const {
  std::vector<ShardTensor> all;
  for (const Part& part : parts_) all.insert(all.end(), part.shard_state.begin(), part.shard_state.end());
  return all;
}

std::vector<StatePager*> BoxOptimizer::pagers() const {
  return pager_ ? std::vector{pager_.get()} : std::vector<StatePager*>();
}

void BoxOptimizer::update(const UpdateInputs& inputs) {
  if (is_true(inputs.skip)) return;
  const double learning_rate = host_value(inputs.learning_rate);
  update_parts(parts_, pager_.get(), [&](const Part& part, Range, const StatePager::State& state) {
    updated_before(part.buffer);
    if (inputs.gradient_factor.defined()) at::Tensor(part.gradients).mul_(inputs.gradient_factor);
    for (const ParameterBox& box : pager_ ? part.boxes_with(state) : part.boxes) update_box(box, learning_rate);
  });
  updated_before(nullptr);
}

}  // namespace meshtrain

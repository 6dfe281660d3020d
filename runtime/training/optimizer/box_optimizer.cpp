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
          part.state.push_back({name, buffer, range, zero_state(options, group, part.values)});
          const std::vector<ShardBox> state = boxes(part.state.back().values);
          for (size_t i = 0; i < state.size(); ++i) part.boxes[i].state.push_back(state[i].values);
        }
        parts_.push_back(std::move(part));
      }
    }
  }
}

std::vector<at::Tensor> BoxOptimizer::Part::tensors() const {
  std::vector<at::Tensor> all = {values, gradients};
  for (const ShardTensor& each : state) all.push_back(each.values);
  return all;
}

std::vector<ShardTensor> BoxOptimizer::state() const {
  std::vector<ShardTensor> all;
  for (const Part& part : parts_) all.insert(all.end(), part.state.begin(), part.state.end());
  return all;
}

void BoxOptimizer::update(const UpdateInputs& inputs) {
  if (is_true(inputs.skip)) return;
  const double learning_rate = host_value(inputs.learning_rate);
  stream(parts_, [&](const Part& part) {
    updated_before(part.buffer);
    if (inputs.gradient_factor.defined()) at::Tensor(part.gradients).mul_(inputs.gradient_factor);
    for (const ParameterBox& box : part.boxes) update_box(box, learning_rate);
  });
  updated_before(nullptr);
}

}  // namespace meshtrain

#include "tensor_parallel/products/leaf_gradient.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>

#include "mesh/device/aten.h"
#include "mesh/device/gradient_state.h"

namespace meshtrain {
namespace {

/// Returns true when torch::autograd::grad, which returns gradients and does not change buffers, requested this
/// gradient.
bool asked_for(const at::Tensor& leaf) {
  const auto* tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr || tasks->empty()) return false;
  const auto task = tasks->find(torch::autograd::impl::try_get_grad_accumulator(leaf).get());
  return task != tasks->end() && task->second.captures_ != nullptr;
}

/// Returns true when the gradient of `leaf` goes into a buffer.
bool has_buffer(const at::Tensor& leaf) {
  return leaf.is_leaf() && !asked_for(leaf) && leaf.grad().defined();
}

bool may_join(const LeafRun& run, const at::Tensor& last_buffer, const GradientTarget& target) {
  if (run.target.buffer.defined() != target.buffer.defined() || run.target.unwritten != target.unwritten) return false;
  return !target.buffer.defined() || adjacent(last_buffer, target.buffer);
}

}  // namespace

bool adjacent(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == b.dim() && a.dim() > 0 && a.sizes().slice(1) == b.sizes().slice(1) &&
         a.scalar_type() == b.scalar_type() && a.is_contiguous() && b.is_contiguous() && a.is_alias_of(b) &&
         a.storage_offset() + a.numel() == b.storage_offset();
}

at::Tensor join(const std::vector<at::Tensor>& parts) {
  const at::NoGradGuard no_grad;
  if (parts.size() == 1) return parts.front();
  if (std::adjacent_find(parts.begin(), parts.end(), std::not_fn(adjacent)) != parts.end()) return at::cat(parts);
  int64_t rows = 0, elements = 0;
  for (const at::Tensor& part : parts) {
    rows += part.size(0);
    elements += part.numel();
  }
  std::vector<int64_t> shape = parts.front().sizes().vec(), strides = parts.front().strides().vec();
  shape[0] = rows;
  strides[0] = elements / std::max<int64_t>(rows, 1);  // the stride of a single row may be anything
  return parts.front().as_strided(shape, strides);
}

GradientTarget gradient_target(const at::Tensor& leaf) {
  if (!has_buffer(leaf)) return {};
  GradientState* const state = GradientState::of(leaf);
  const bool unwritten = state != nullptr && state->take_unwritten();
  if (torch::autograd::impl::hooks(leaf).empty()) return {leaf.grad(), unwritten};
  if (unwritten) leaf.grad().zero_();
  return {};
}

bool can_be_deferred(const at::Tensor& leaf) {
  return has_buffer(leaf) && torch::autograd::impl::hooks(leaf).empty() && GradientState::of(leaf) != nullptr;
}

at::Tensor gradient_in_place(const at::Tensor& leaf) {
  const GradientTarget target = gradient_target(leaf);
  return target.unwritten ? target.buffer.zero_() : target.buffer;
}

void require_first_order(const char* operation) {
  if (c10::GradMode::is_enabled()) {
    throw std::logic_error(std::string(operation) + " can be differentiated once only, without create_graph");
  }
}

std::vector<LeafRun> leaf_runs(const std::vector<at::Tensor>& leaves, const std::vector<bool>& needed) {
  std::vector<LeafRun> runs;
  std::vector<at::Tensor> buffers;  // gradient buffers of the last run
  int64_t row = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const int64_t rows = leaves[i].size(0);
    if (needed[i]) {
      const GradientTarget target = gradient_target(leaves[i]);
      if (!runs.empty() && runs.back().end == i && may_join(runs.back(), buffers.back(), target)) {
        runs.back().end = i + 1;
        runs.back().rows += rows;
      } else {
        buffers.clear();
        runs.push_back({i, i + 1, row, rows, target});
      }
      buffers.push_back(target.buffer);
      if (target.buffer.defined()) runs.back().target.buffer = join(buffers);
    }
    row += rows;
  }
  return runs;
}

}  // namespace meshtrain

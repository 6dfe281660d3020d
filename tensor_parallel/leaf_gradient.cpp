#include "tensor_parallel/leaf_gradient.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>

namespace meshtrain {
namespace {

/// Whether torch::autograd::grad, which returns gradients and leaves buffers alone, asked for this one.
bool asked_for(const at::Tensor& leaf) {
  const auto* tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr || tasks->empty()) return false;
  const auto task = tasks->find(torch::autograd::impl::try_get_grad_accumulator(leaf).get());
  return task != tasks->end() && task->second.captures_ != nullptr;
}

bool may_join(const LeafRun& run, const at::Tensor& last_gradient, const at::Tensor& gradient) {
  if (run.in_place.defined() != gradient.defined()) return false;
  return !gradient.defined() || adjacent(last_gradient, gradient);
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
  strides[0] = elements / std::max<int64_t>(rows, 1);  // that of a single row may be anything
  return parts.front().as_strided(shape, strides);
}

at::Tensor gradient_in_place(const at::Tensor& leaf) {
  if (!leaf.is_leaf() || !torch::autograd::impl::hooks(leaf).empty() || asked_for(leaf)) return {};
  return leaf.grad();
}

std::vector<LeafRun> leaf_runs(const std::vector<at::Tensor>& leaves, const std::vector<bool>& needed) {
  std::vector<LeafRun> runs;
  std::vector<at::Tensor> gradients;  // of the last run
  int64_t row = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const int64_t rows = leaves[i].size(0);
    if (needed[i]) {
      const at::Tensor gradient = gradient_in_place(leaves[i]);
      if (!runs.empty() && runs.back().end == i && may_join(runs.back(), gradients.back(), gradient)) {
        runs.back().end = i + 1;
        runs.back().rows += rows;
      } else {
        gradients.clear();
        runs.push_back({i, i + 1, row, rows, {}});
      }
      gradients.push_back(gradient);
      if (gradient.defined()) runs.back().in_place = join(gradients);
    }
    row += rows;
  }
  return runs;
}

}  // namespace meshtrain

#include "expert_parallel/expert_rows.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "expert_parallel/row_arithmetic.h"
#include "mesh/device/aten.h"
#include "mesh/device/meta_device.h"
#include "tensor_parallel/products/leaf_gradient.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns where the rows of each expert start.
GroupStarts starts_of(const int64_t* counts, int64_t num_experts) {
  GroupStarts starts(static_cast<size_t>(num_experts) + 1, 0);
  for (size_t expert = 0; expert + 1 < starts.size(); ++expert) starts[expert + 1] = starts[expert] + counts[expert];
  return starts;
}

/// Returns the starts of experts with equal numbers of rows.
GroupStarts balanced_starts(int64_t rows, int64_t num_experts) {
  GroupStarts starts;
  for (int64_t expert = 0; expert <= num_experts; ++expert) {
    starts.push_back(expert * (rows / num_experts) + std::min(expert, rows % num_experts));
  }
  return starts;
}

/// Notes which pairs are dropped, and leaves rows for the others.
void keep_rows(ExpertRows& sorted, const at::Tensor& choices, int64_t num_experts) {
  sorted.dropped = choices.eq(num_experts);
  sorted.slots = sorted.slots.narrow(0, 0, sorted.starts.back());
  sorted.tokens = sorted.tokens.narrow(0, 0, sorted.starts.back());
}

/// Sorts pairs by counting, in host memory.
void sort_on_host(const at::Tensor& choices, int64_t num_experts, ExpertRows& sorted) {
  const int64_t pairs = choices.numel(), num_slots = choices.size(1);
  int64_t num_dropped = 0;
  const int64_t* const experts = choices.const_data_ptr<int64_t>();
  int64_t* const counts = sorted.counts.data_ptr<int64_t>();
  std::fill_n(counts, num_experts, 0);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (experts[pair] == num_experts) {
      ++num_dropped;
      continue;
    }
    if (experts[pair] < 0 || experts[pair] > num_experts) {
      throw std::invalid_argument("experts: token " + std::to_string(pair / num_slots) + " has chosen expert " +
                                  std::to_string(experts[pair]) + " of " + std::to_string(num_experts));
    }
    ++counts[experts[pair]];
  }
  sorted.starts = starts_of(counts, num_experts);
  if (num_dropped > 0) keep_rows(sorted, choices, num_experts);
  GroupStarts next = sorted.starts;
  int64_t* const slots = sorted.slots.data_ptr<int64_t>();
  int64_t* const tokens = sorted.tokens.data_ptr<int64_t>();
  int64_t* const rows = sorted.rows.data_ptr<int64_t>();
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (experts[pair] == num_experts) {
      rows[pair] = 0;
      continue;
    }
    const int64_t row = next[static_cast<size_t>(experts[pair])]++;
    rows[pair] = row;
    slots[row] = pair;
    tokens[row] = pair / num_slots;
  }
}

/// Sorts pairs, dropped ones last. `counts` of the result has a number for them, too.
void sort_on_gpu(const at::Tensor& choices, ExpertRows& sorted) {
  const at::Tensor experts = choices.flatten();
  sorted.slots = std::get<1>(experts.sort(/*stable=*/true, 0, /*descending=*/false));
  sorted.tokens = sorted.slots.div(choices.size(1), "floor");
  sorted.rows.flatten().scatter_(0, sorted.slots, at::arange(choices.numel(), choices.options()));
  sorted.counts.zero_().scatter_add_(0, experts, at::ones_like(experts));
}

struct RowsHolder : torch::CustomClassHolder {
  explicit RowsHolder(ExpertRows sorted_rows) : rows(std::move(sorted_rows)) {}
  ExpertRows rows;
};

void save_rows(AutogradContext* ctx, const ExpertRows& rows) {
  ctx->saved_data["rows"] = c10::IValue::make_capsule(c10::make_intrusive<RowsHolder>(rows));
}

ExpertRows kept_rows(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<RowsHolder>(ctx->saved_data["rows"].toCapsule())->rows;
}

struct RowsOfTokens : torch::autograd::Function<RowsOfTokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const ExpertRows& rows) {
    save_rows(ctx, rows);
    return rows_at(x, rows.tokens);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("the rows of experts");
    const ExpertRows rows = kept_rows(ctx);
    return {summed_rows(grads[0], rows.rows, rows.dropped), at::Tensor()};
  }
};

struct WeightsOfRows : torch::autograd::Function<WeightsOfRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weights, const ExpertRows& rows) {
    save_rows(ctx, rows);
    return rows_at(weights.flatten(), rows.slots);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("the weights of experts' rows");
    const ExpertRows rows = kept_rows(ctx);
    return {weights_of_pairs(grads[0], rows), at::Tensor()};
  }
};

struct SumOfSlots : torch::autograd::Function<SumOfSlots> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const ExpertRows& rows) {
    save_rows(ctx, rows);
    return summed_rows(y, rows.rows, rows.dropped);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("the sum of experts' rows");
    return {rows_at(grads[0], kept_rows(ctx).tokens), at::Tensor()};
  }
};

}  // namespace

ExpertRows sort_by_expert(const at::Tensor& choices, int64_t num_experts) {
  const at::NoGradGuard no_grad;
  const at::Tensor pairs = choices.contiguous();
  ExpertRows sorted;
  sorted.rows = at::empty_like(pairs);
  if (is_host(pairs.device())) {
    sorted.counts = at::empty({num_experts}, pairs.options());
    sorted.slots = at::empty({pairs.numel()}, pairs.options());
    sorted.tokens = at::empty({pairs.numel()}, pairs.options());
    if (!pairs.is_meta()) sort_on_host(pairs, num_experts, sorted);
  } else {
    sorted.counts = at::empty({num_experts + 1}, pairs.options());
    sort_on_gpu(pairs, sorted);
    sorted.counts = sorted.counts.narrow(0, 0, num_experts);
    if (!pairs.is_meta()) {
      const at::Tensor counts = sorted.counts.cpu();
      sorted.starts = starts_of(counts.const_data_ptr<int64_t>(), num_experts);
      if (sorted.starts.back() < pairs.numel()) {
        keep_rows(sorted, pairs, num_experts);
        sorted.rows.masked_fill_(sorted.dropped, 0);
      }
    }
  }
  if (pairs.is_meta()) sorted.starts = balanced_starts(pairs.numel(), num_experts);
  return sorted;
}

at::Tensor weights_of_pairs(const at::Tensor& of_rows, const ExpertRows& rows) {
  return rows_at(of_rows, rows.rows.flatten(), rows.dropped.defined() ? rows.dropped.flatten() : at::Tensor())
      .view(rows.rows.sizes());
}

at::Tensor rows_of_tokens(const at::Tensor& x, const ExpertRows& rows) {
  return RowsOfTokens::apply(x, rows);
}

at::Tensor weights_of_rows(const at::Tensor& weights, const ExpertRows& rows) {
  return WeightsOfRows::apply(weights, rows);
}

at::Tensor sum_of_slots(const at::Tensor& y, const ExpertRows& rows) {
  return SumOfSlots::apply(y, rows);
}

}  // namespace meshtrain

#include "runtime/training/optimizer/adamw.h"

#include <torch/library.h>

#include <cmath>
#include <optional>
#include <utility>

#include "fsdp/shard_memory.h"
#include "mesh/device/aten.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/operator.h"
#include "runtime/training/optimizer/operators/adamw_host.h"

namespace meshtrain {

AdamW::AdamW(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
             const std::optional<StochasticRounding>& rounding)
    : Optimizer(groups), options_(options), rounding_(rounding) {
  for (const ParameterGroup& group : groups) {
    for (const FlatBuffer* buffer : trainable_buffers(group.fsdp->units())) {
      for (const auto& [range, rule] : update_ranges(*buffer, options)) {
        if (rule.full_matrix) continue;
        const at::Tensor values = buffer->shard_values().narrow(0, range.offset, range.numel);
        std::optional<at::Tensor> rounded;
        if (const at::Tensor all = buffer->rounded_shard(); all.defined()) {
          rounded = all.narrow(0, range.offset, range.numel);
        }
        parts_.push_back({values, buffer->shard_gradients().narrow(0, range.offset, range.numel),
                          zero_state(options, group, values), zero_state(options, group, values), rounded, rule, buffer,
                          range, rounding_ ? rounding_->runs(*buffer, range) : at::Tensor()});
      }
    }
  }
  std::vector<StatePager::State> state;
  for (const Part& part : parts_) state.push_back(part.state());
  pager_ = make_state_pager(groups, state, /*cuts=*/true);
}

namespace {

/// Returns true when the loops of adamw_host.h take the tensors: fp32 values, and bf16 ones beside them or none.
bool has_adamw_loops(const at::Tensor& values, const at::Tensor& gradients, const std::optional<at::Tensor>& rounded) {
  const at::ScalarType beside = rounded ? rounded->scalar_type() : at::kFloat;
  const bool read = gradients.scalar_type() == at::kFloat || gradients.scalar_type() == beside;
  return values.scalar_type() == at::kFloat && (!rounded || beside == at::kBFloat16) && read && has_lanes(beside) &&
         values.is_contiguous() && gradients.is_contiguous();
}

/// Updates the tensors by the loops, in parallel.
template <class Set, class G, class R>
void update_in_loops(const adamw_host::Update& with, at::Tensor& values, at::Tensor& first_moment,
                     at::Tensor& second_moment, const at::Tensor& gradients, R* rounded) {
  float *const value = values.data_ptr<float>(), *const first = first_moment.data_ptr<float>();
  float* const second = second_moment.data_ptr<float>();
  const G* const gradient = gradients.const_data_ptr<G>();
  for_row_ranges(values.numel(), /*size=*/1, [&](int64_t begin, int64_t count) {
    adamw_host::update<Set>(with, count, gradient + begin, value + begin, first + begin, second + begin,
                            rounded == nullptr ? rounded : rounded + begin);
  });
}

adamw_host::Update update_of(double learning_rate, double count, double factor, double beta1, double beta2,
                             double weight_decay, double eps) {
  const auto narrow = [](double value) { return static_cast<float>(value); };
  return {narrow(1 - learning_rate * weight_decay),
          narrow(beta1),
          narrow(beta2),
          narrow(1 - beta1),
          narrow(1 - beta2),
          narrow(learning_rate / (1 - std::pow(beta1, count))),
          narrow(1 / std::sqrt(1 - std::pow(beta2, count))),
          narrow(eps),
          narrow(factor)};
}

/// Updates the tensors on the CPU. Gradients may have another dtype; `factor`, if given, multiplies them: in
/// place where LibTorch's operator computes. `rounded` receives the new values in a dtype of its own. Nothing is
/// changed when `skip` is true.
void adamw(at::Tensor& values, at::Tensor& first_moment, at::Tensor& second_moment, at::Tensor& gradients,
           const std::optional<at::Tensor>& rounded, const at::Tensor& learning_rate, const at::Tensor& count,
           const std::optional<at::Tensor>& factor, const std::optional<at::Tensor>& skip, double rate, double beta1,
           double beta2, double weight_decay, double eps) {
  if (skip && is_true(*skip)) return;
  if (rounded && rounded->scalar_type() == at::kHalf && has_adamw_loops(values, gradients, {})) {
    // The loops round only to bf16.
    adamw(values, first_moment, second_moment, gradients, {}, learning_rate, count, factor, {}, rate, beta1, beta2,
          weight_decay, eps);
    rounded->copy_(values);
    return;
  }
  if (has_adamw_loops(values, gradients, rounded)) {
    if (values.is_meta()) return;
    const adamw_host::Update with = update_of(host_value(learning_rate) * rate, count.item<double>(),
                                              factor ? factor->item<double>() : 1, beta1, beta2, weight_decay, eps);
    return with_lanes(rounded ? at::kBFloat16 : at::kFloat, [&]<class Set>(Set) {
      const auto update = [&]<class G>(G, auto* copy) {
        update_in_loops<Set, G>(with, values, first_moment, second_moment, gradients, copy);
      };
      if (gradients.scalar_type() == at::kBFloat16) {
        update(c10::BFloat16(), rounded->data_ptr<c10::BFloat16>());
      } else if (rounded) {
        update(float(), rounded->data_ptr<c10::BFloat16>());
      } else {
        update(float(), static_cast<float*>(nullptr));
      }
    });
  }
  if (factor) gradients.mul_(*factor);
  at::_fused_adamw_(values, gradients.to(values.scalar_type()), first_moment, second_moment, /*max_exp_avg_sqs=*/{},
                    count, host_value(learning_rate) * rate, beta1, beta2, weight_decay, eps, /*amsgrad=*/false,
                    /*maximize=*/false);
  if (rounded) rounded->copy_(values);
}

// The kernel for CUDA allocates nothing.
void adamw_on_gpu(at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&, const std::optional<at::Tensor>&,
                  const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                  const std::optional<at::Tensor>&, double, double, double, double, double) {}

}  // namespace

namespace {

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

void AdamW::update(const UpdateInputs& inputs) {
  if (rounding_ && is_true(inputs.skip)) return;
  const std::optional<at::Tensor> skip = if_defined(inputs.skip);
  const int64_t step = rounding_ ? num_steps() : 0;
  update_parts(parts_, pager_.get(), [&](const Part& part, Range piece, const StatePager::State& state) {
    updated_before(part.buffer);
    const auto piece_of = [&](const at::Tensor& all) { return all.narrow(0, piece.offset, piece.numel); };
    const at::Tensor own_gradients = piece_of(part.gradients);
    const std::optional<at::Tensor> rounded = part.rounded ? std::optional(piece_of(*part.rounded)) : std::nullopt;
    std::optional<at::Tensor> factor = if_defined(inputs.gradient_factor);
    if (factor && rounding_) {  // rounded like the gradients are, before they are widened
      at::Tensor(own_gradients).mul_(*std::exchange(factor, std::nullopt));
    }
    const auto update = [&](std::vector<at::Tensor> tensors, at::Tensor gradients) {
      static const Operator<decltype(adamw)> adamw_("meshtrain::adamw_");
      adamw_(tensors[0], tensors[1], tensors[2], gradients, rounded, inputs.learning_rate, count(), factor, skip,
             part.rule.rate, options_.betas[0], options_.betas[1], part.rule.weight_decay, options_.eps);
    };
    apply_update(rounding_, {piece_of(part.values), state[0], state[1]}, own_gradients, part.runs, piece.offset, step,
                 update);
  });
  updated_before(nullptr);
}

std::vector<StatePager*> AdamW::pagers() const {
  return pager_ ? std::vector{pager_.get()} : std::vector<StatePager*>();
}

std::vector<ShardTensor> AdamW::state() const {
  std::vector<ShardTensor> state;
  for (const Part& part : parts_) {
    state.push_back({"exp_avg", part.buffer, part.range, part.first_moment});
    state.push_back({"exp_avg_sq", part.buffer, part.range, part.second_moment});
  }
  return state;
}

namespace {

// LibTorch has no Meta kernel for the fused update: in a dry run there is nothing to compute and nothing to allocate.
void fused_adamw_meta(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                      double, double, double, double, double, bool, bool, const std::optional<at::Tensor>&,
                      const std::optional<at::Tensor>&) {}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&adamw, &adamw_on_gpu>(
      library,
      "adamw_(Tensor(a!) values, Tensor(b!) first_moment, Tensor(c!) second_moment, Tensor(d!) gradients, "
      "Tensor(e!)? rounded, Tensor learning_rate, Tensor step, Tensor? factor, Tensor? skip, float rate, float beta1, "
      "float beta2, float weight_decay, float eps) -> ()");
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_fused_adamw_", fused_adamw_meta);
}

}  // namespace
}  // namespace meshtrain

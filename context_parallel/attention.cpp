#include "context_parallel/attention.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <sstream>
#include <stdexcept>
#include <vector>

#include "context_parallel/all_gather.h"
#include "context_parallel/local.h"
#include "context_parallel/ring.h"
#include "context_parallel/ulysses.h"
#include "context_parallel/window_attention.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"

namespace meshtrain {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            at::TensorList, const c10::intrusive_ptr<AttentionCall>& call) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    AttentionCall::Forward result = call->forward(q, k, v);
    context->save_for_backward(std::move(result.saved));
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return result.out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_out) {
    const auto call = c10::static_intrusive_pointer_cast<AttentionCall>(context->saved_data["call"].toCapsule());
    AttentionGradients gradients = call->backward(grad_out[0], context->get_saved_variables());
    variable_list all = {std::move(gradients.q), std::move(gradients.k), std::move(gradients.v)};
    if (gradients.sinks.defined()) all.push_back(std::move(gradients.sinks));
    all.emplace_back();  // of the call
    return all;
  }
};

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& layout,
           const Group& group, const AttentionRule& rule) {
  const auto refuse = [&](const char* problem) {
    std::ostringstream message;
    message << group.coordinate_text() << ": attention over group " << group.name() << ": " << problem << "; q "
            << q.sizes() << " " << q.scalar_type() << ", k " << k.sizes() << " " << k.scalar_type() << ", v "
            << v.sizes() << " " << v.scalar_type() << ", layout of " << layout.local_length() << " positions on rank "
            << layout.rank() << " of " << layout.ranks() << ", group rank " << group.rank() << " of " << group.size();
    throw RankError<std::invalid_argument>(message.str());
  };
  if (layout.ranks() != group.size() || layout.rank() != group.rank()) refuse("the layout belongs to another group");
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4) refuse("q, k and v need four dims, [B, heads, s, D]");
  if (k.sizes() != v.sizes()) refuse("k and v differ in shape");
  if (q.size(0) != k.size(0) || q.size(3) != k.size(3)) refuse("q and k differ in batch or head dim");
  if (q.size(2) != layout.local_length() || k.size(2) != layout.local_length()) {
    refuse("dim 2 is not the local part of the sequence");
  }
  if (k.size(1) == 0 || q.size(1) % k.size(1) != 0) refuse("query heads are not a multiple of key-value heads");
  if (q.scalar_type() != k.scalar_type() || q.scalar_type() != v.scalar_type()) refuse("dtypes differ");
  if (rule.sinks.defined() && (rule.sinks.dim() != 1 || rule.sinks.size(0) != q.size(1))) {
    refuse("sinks need one score for each query head");
  }
  if (rule.window < 0 || rule.softcap < 0) refuse("window and softcap must be at least 0");
}

c10::intrusive_ptr<AttentionCall> make_call(const at::Tensor& q, const at::Tensor& k, const SequenceLayout& layout,
                                            const Group& group, ContextAlgorithm algorithm, AttentionRule rule) {
  const int64_t batch = q.size(0);
  if (rule.window >= layout.sequence_length()) rule.window = 0;
  const KernelCallOptions options = kernel_call_options(q, layout, rule);
  if (group.size() == 1) return c10::make_intrusive<LocalAttention>(layout, batch, rule, options);
  const Group counted = group.with_purpose("cp.attention");
  if (rule.window > 0 && algorithm != ContextAlgorithm::Ulysses) {
    return c10::make_intrusive<WindowAttention>(layout, counted, batch, rule, options,
                                                /*at_once=*/algorithm == ContextAlgorithm::AllGather);
  }
  switch (algorithm) {
    case ContextAlgorithm::Ring:
      return c10::make_intrusive<RingAttention>(layout, counted, batch, rule, options);
    case ContextAlgorithm::AllGather:
      return c10::make_intrusive<AllGatherAttention>(layout, counted, batch, rule, options);
    case ContextAlgorithm::Ulysses:
      return c10::make_intrusive<UlyssesAttention>(layout, counted, batch, q.size(1), k.size(1), rule, options);
  }
  throw std::invalid_argument("attention: no such algorithm");
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& layout,
                     const Group& group, ContextAlgorithm algorithm, const AttentionRule& rule) {
  check(q, k, v, layout, group, rule);
  std::vector<at::Tensor> trained_sinks;
  if (rule.sinks.defined() && rule.sinks.requires_grad()) trained_sinks.push_back(rule.sinks);
  return AttentionFunction::apply(q, k, v, at::TensorList(trained_sinks),
                                  make_call(q, k, layout, group, algorithm, rule));
}

}  // namespace meshtrain

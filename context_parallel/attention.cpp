#include "context_parallel/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <sstream>
#include <stdexcept>

#include "context_parallel/all_gather.h"
#include "context_parallel/attention_kernels.h"
#include "context_parallel/blocks.h"

namespace meshtrain {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The keys of a sequence all here, one document: the kernel alone.
struct PlainAttention : torch::autograd::Function<PlainAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            double scale) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Attended attended = attend(q, k, v, /*causal=*/true, scale);
    context->save_for_backward({q, k, v, attended.out, attended.lse});
    context->saved_data["scale"] = scale;
    return attended.out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_out) {
    const variable_list saved = context->get_saved_variables();
    AttentionGradients gradients = attend_backward(grad_out[0], saved[0], saved[1], saved[2], {saved[3], saved[4]},
                                                   /*causal=*/true, context->saved_data["scale"].toDouble());
    return {gradients.q, gradients.k, gradients.v, at::Tensor()};
  }
};

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& layout,
           const Group& group) {
  const auto refuse = [&](const char* problem) {
    std::ostringstream message;
    message << group.place() << ": attention over group " << group.name() << ": " << problem << "; q " << q.sizes()
            << " " << q.scalar_type() << ", k " << k.sizes() << " " << k.scalar_type() << ", v " << v.sizes() << " "
            << v.scalar_type() << ", layout of " << layout.local_length() << " positions on rank " << layout.rank()
            << " of " << layout.ranks() << ", group rank " << group.rank() << " of " << group.size();
    throw std::invalid_argument(message.str());
  };
  if (layout.ranks() != group.size() || layout.rank() != group.rank()) refuse("the layout is another group's");
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4) refuse("q, k and v need four dims, [B, heads, s, D]");
  if (k.sizes() != v.sizes()) refuse("k and v differ in shape");
  if (q.size(0) != k.size(0) || q.size(3) != k.size(3)) refuse("q and k differ in batch or head dim");
  if (q.size(2) != layout.local_length() || k.size(2) != layout.local_length()) {
    refuse("dim 2 is not the local part of the sequence");
  }
  if (k.size(1) == 0 || q.size(1) % k.size(1) != 0) refuse("query heads are no multiple of key-value heads");
  if (q.scalar_type() != k.scalar_type() || q.scalar_type() != v.scalar_type()) refuse("dtypes differ");
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& layout,
                     const Group& group, ContextAlgorithm algorithm, double scale) {
  check(q, k, v, layout, group);
  if (group.size() == 1 && layout.documents().empty()) return PlainAttention::apply(q, k, v, scale);
  const Group counted = group.with_purpose("cp.attention");
  switch (algorithm) {
    case ContextAlgorithm::AllGather:
      return all_gather_attention(q, k, v, layout, counted, scale);
    case ContextAlgorithm::Ring:
    case ContextAlgorithm::Ulysses:
      break;
  }
  throw std::invalid_argument("attention: no such algorithm");
}

}  // namespace meshtrain

#include "tensor_parallel/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "mesh/half_precision.h"
#include "tensor_parallel/collectives.h"
#include "tensor_parallel/cross_entropy_rows.h"
#include "tensor_parallel/leaf_gradient.h"
#include "tensor_parallel/matrix_product.h"
#include "tensor_parallel/vocabulary_shard.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What there is besides x and labels. The weight is kept here and not among the saved variables: its storage may be
/// refilled between forward and backward.
struct Head : torch::CustomClassHolder {
  Head(const Parameter& parameter, int64_t ignored_id, const TensorParallel& parallel, int64_t bytes)
      : weight(parameter.tensor),
        first(parameter.box.start[0]),
        valid(parameter.box.size[0]),
        ignored(ignored_id),
        tp(parallel),
        logit_bytes(bytes),
        statistics(parallel.group.with_purpose("tp.cross_entropy")) {
    tp.group = tp.group.with_purpose("tp.linear");
  }

  /// Without padding. [valid, M]
  at::Tensor rows() const { return weight.detach().narrow(0, 0, valid); }

  /// Calls piece(first, count) for as few ranges of `tokens` tokens as logit_bytes allow, all about as large. The same
  /// on every rank: padding counts.
  template <class Piece>
  void for_chunks(int64_t tokens, Piece piece) const {
    const int64_t token_bytes = std::max<int64_t>(1, weight.size(0) * static_cast<int64_t>(weight.element_size()));
    const int64_t most = std::max<int64_t>(1, logit_bytes / token_bytes), chunks = (tokens + most - 1) / most;
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t begin = tokens * i / chunks;
      piece(begin, tokens * (i + 1) / chunks - begin);
    }
  }

  at::Tensor
      weight;  ///< [V/tp rounded up, M]: the ids from `first` on, of which `valid` are there (0 and all included)
  int64_t first;
  int64_t valid;
  int64_t ignored;
  TensorParallel tp;
  int64_t logit_bytes;
  Group statistics;
};

using HeadPointer = c10::intrusive_ptr<Head>;

/// Some tokens on this rank's part of the vocabulary: their loss, and then the gradient of their logits.
class Chunk {
 public:
  /// x [n, M], labels [n]. Collective.
  Chunk(const at::Tensor& x, const at::Tensor& labels, const Head& head) : logits_(product(x, head.rows())) {
    labels_.ignored = labels.eq(head.ignored);
    ShardIds ids = shard_ids(labels, head.first, head.valid);
    labels_.column = ids.local;
    labels_.absent = ids.absent.bitwise_or_(labels_.ignored);

    const at::TensorOptions wide = logits_.options().dtype(accumulation_dtype(logits_.scalar_type()));
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    max_ = any() ? row_maxima(logits_) : at::full({labels.numel()}, -kInfinity, wide);
    head.statistics.all_reduce(max_, Reduce::Max).wait();
    at::Tensor sums = at::zeros({2, labels.numel()}, wide);
    if (any()) row_sums(logits_, max_, labels_, sums);
    head.statistics.all_reduce(sums).wait();
    sum_exp_ = sums[0];
    loss_ = sum_exp_.log().add_(max_).sub_(sums[1]).masked_fill_(labels_.ignored, 0).sum();
  }

  /// The sum over the tokens, and over the whole vocabulary.
  const at::Tensor& loss() const { return loss_; }

  /// [n, valid], when that of the loss is the scalar `upstream`; in the memory of the logits. Once.
  const at::Tensor& gradient(const at::Tensor& upstream) {
    if (any()) row_gradients(logits_, max_, sum_exp_, labels_, upstream);
    return logits_;
  }

 private:
  /// Whether there are ids on this rank at all.
  bool any() const { return logits_.size(1) > 0; }

  at::Tensor logits_;  // [n, valid]; then the gradient
  RowLabels labels_;
  at::Tensor max_;      // [n], over the whole vocabulary, as all below
  at::Tensor sum_exp_;  // [n]
  at::Tensor loss_;     // []
};

Pending start_gather(const at::Tensor& x, const TensorParallel& tp) {
  return tp.splits_rows() ? start_gather_rows(x, tp.group) : Pending{x, {}};
}

/// The sum of every rank's gradient of x.
Pending start_sum(const at::Tensor& dx, const TensorParallel& tp) {
  if (tp.splits_rows()) return start_scatter_rows(dx, tp.group);
  Pending sum{dx, {}};
  sum.work = tp.group.all_reduce(sum.tensor);
  return sum;
}

at::Tensor loss_alone(const at::Tensor& x, const at::Tensor& labels, const Head& head) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = start_gather(x, head.tp).wait();
  at::Tensor loss = at::zeros({}, x.options().dtype(accumulation_dtype(x.scalar_type())).requires_grad(false));
  head.for_chunks(labels.numel(), [&](int64_t first, int64_t count) {
    loss.add_(Chunk(rows.narrow(0, first, count), labels.narrow(0, first, count), head).loss());
  });
  return loss;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor&, const at::Tensor& labels,
                            const HeadPointer& head) {
    constexpr double kNotYet = std::numeric_limits<double>::quiet_NaN();
    const at::Tensor value =
        at::full({}, kNotYet, x.options().dtype(accumulation_dtype(x.scalar_type())).requires_grad(false));
    ctx->save_for_backward({x, labels});
    ctx->saved_data["head"] = c10::IValue::make_capsule(head);
    ctx->saved_data["value"] = value;
    return value.detach();  // the output knows its graph, which must not keep the output
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a linear cross-entropy");
    const auto head = c10::static_intrusive_pointer_cast<Head>(ctx->saved_data["head"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &labels = saved[1], &upstream = grads[0];
    const bool needs_x = ctx->needs_input_grad(0), needs_weight = ctx->needs_input_grad(1);

    const GradientTarget target = needs_weight ? gradient_target(head->weight) : GradientTarget{};
    const bool returned = needs_weight && !target.buffer.defined();
    const at::Tensor weight_gradient = returned ? at::zeros_like(head->weight) : target.buffer;
    const int64_t written = labels.numel() > 0 ? head->valid : 0;  // rows that products write
    if (target.unwritten) weight_gradient.narrow(0, written, head->weight.size(0) - written).zero_();
    const at::Tensor x = start_gather(saved[0], head->tp).wait();
    at::Tensor whole_dx;
    Pending dx;
    at::Tensor value = ctx->saved_data["value"].toTensor().zero_();
    head->for_chunks(labels.numel(), [&](int64_t first, int64_t count) {
      const at::Tensor rows = x.narrow(0, first, count);
      Chunk chunk(rows, labels.narrow(0, first, count), *head);
      value.add_(chunk.loss());
      const at::Tensor gradient = chunk.gradient(upstream);
      if (needs_x) {
        const at::Tensor part = product(gradient, head->rows().t());
        if (count == labels.numel()) {
          whole_dx = part;
        } else {
          if (first == 0) whole_dx = at::empty_like(x);
          whole_dx.narrow(0, first, count).copy_(part);
        }
        if (first + count == labels.numel()) dx = start_sum(whole_dx, head->tp);
      }
      const bool writes = target.unwritten && first == 0;
      if (needs_weight) add_product(weight_gradient.narrow(0, 0, head->valid), gradient, rows, writes);
    });
    return {needs_x ? dx.wait() : at::Tensor(), returned ? weight_gradient : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const Parameter& head, const at::Tensor& labels, int64_t ignored,
                                const TensorParallel& tp, int64_t logit_bytes) {
  const auto kept = c10::make_intrusive<Head>(head, ignored, tp, logit_bytes);
  const bool recorded = at::GradMode::is_enabled() && (x.requires_grad() || head.tensor.requires_grad());
  return recorded ? LinearCrossEntropy::apply(x, head.tensor, labels, kept) : loss_alone(x, labels, *kept);
}

}  // namespace meshtrain

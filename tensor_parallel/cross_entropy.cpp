#include "tensor_parallel/cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/row_chunks.h"
#include "tensor_parallel/vocabulary_shard.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::ScalarType accumulation_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The columns of the logits that are vocabulary, and where the labels stand among them.
struct Shard {
  Shard(const at::Tensor& logits, const at::Tensor& labels, int64_t first, int64_t valid, int64_t ignored_id)
      : columns(logits.narrow(1, 0, valid)), ignored(labels.eq(ignored_id)) {
    ShardIds ids = shard_ids(labels, first, valid);
    label = ids.local.unsqueeze(1);
    absent = ids.absent.bitwise_or_(ignored);
  }

  at::Tensor columns;  ///< [T, valid]
  at::Tensor label;    ///< int64 [T, 1]: column of the label, 0 where `absent`
  at::Tensor absent;   ///< bool [T]: labels of other ranks, and ignored ones
  at::Tensor ignored;  ///< bool [T]
};

/// exp(rows - max), [n, valid] in the dtype of max [n]; in the memory of `rows` when `over` says so and dtypes allow.
at::Tensor exponentials(const at::Tensor& rows, const at::Tensor& max, bool over) {
  at::Tensor wide = rows.to(max.scalar_type());
  const bool own_memory = !wide.is_alias_of(rows);
  return (own_memory || over ? wide.sub_(max.unsqueeze(1)) : wide.sub(max.unsqueeze(1))).exp_();
}

/// `piece` for ranges of rows of the shard whose exponentials are a bounded temporary.
template <class Piece>
void for_rows(const Shard& shard, const at::Tensor& max, Piece piece) {
  const int64_t row_bytes = shard.columns.size(1) * static_cast<int64_t>(max.element_size());
  for_row_chunks(shard.columns.size(0), row_bytes, piece);
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                            int64_t valid, int64_t ignored, const Group& group) {
    const Shard shard(logits, labels, first, valid, ignored);
    const at::TensorOptions wide = logits.options().dtype(accumulation_dtype(logits));

    at::Tensor max = valid > 0 ? shard.columns.amax(1).to(wide.dtype()) : at::full({labels.numel()}, -kInfinity, wide);
    const Work reducing_max = group.all_reduce(max, Reduce::Max);
    at::Tensor sums = at::zeros({2, labels.numel()}, wide);
    at::Tensor sum_exp = sums[0], label_logit = sums[1];
    if (valid > 0) {
      label_logit.copy_(shard.columns.gather(1, shard.label).squeeze(1)).masked_fill_(shard.absent, 0);
    }
    reducing_max.wait();
    if (valid > 0) {
      for_rows(shard, max, [&](int64_t row, int64_t count) {
        const at::Tensor rows = shard.columns.narrow(0, row, count);
        sum_exp.narrow(0, row, count).copy_(exponentials(rows, max.narrow(0, row, count), false).sum(1));
      });
    }
    group.all_reduce(sums).wait();

    ctx->save_for_backward({logits, labels, max, sum_exp});
    ctx->saved_data["first"] = first;
    ctx->saved_data["valid"] = valid;
    ctx->saved_data["ignored"] = ignored;
    ctx->saved_data["over_logits"] = !logits.is_leaf();
    return sum_exp.log().add_(max).sub_(label_logit).masked_fill_(shard.ignored, 0).sum();
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a cross-entropy");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &logits = saved[0], &labels = saved[1], &max = saved[2], &sum_exp = saved[3], &upstream = grads[0];
    const int64_t valid = ctx->saved_data["valid"].toInt();
    const Shard shard(logits, labels, ctx->saved_data["first"].toInt(), valid, ctx->saved_data["ignored"].toInt());

    const at::Tensor scale = upstream.div(sum_exp).masked_fill_(shard.ignored, 0).unsqueeze(1);
    const at::Tensor at_label = upstream.neg().expand_as(max).masked_fill(shard.absent, 0).unsqueeze(1);
    const bool over_logits = ctx->saved_data["over_logits"].toBool();
    const at::Tensor gradient = over_logits ? logits.detach() : at::empty_like(logits);
    if (valid > 0) {
      for_rows(shard, max, [&](int64_t row, int64_t count) {
        const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, row, count); };
        at::Tensor rows = exponentials(part(shard.columns), part(max), over_logits);
        rows.mul_(part(scale)).scatter_add_(1, part(shard.label), part(at_label));
        at::Tensor place = part(gradient).narrow(1, 0, valid);
        if (!place.is_alias_of(rows)) place.copy_(rows);
      });
    }
    gradient.narrow(1, valid, logits.size(1) - valid).zero_();
    return {gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                                        int64_t valid, int64_t ignored, const TensorParallel& tp) {
  return CrossEntropy::apply(logits, labels, first, valid, ignored, tp.group.with_purpose("tp.cross_entropy"));
}

}  // namespace meshtrain

#include "tensor_parallel/linear_cross_entropy.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "mesh/device/meta_device.h"
#include "tensor_parallel/collectives.h"
#include "tensor_parallel/operators/cross_entropy_rows.h"
#include "tensor_parallel/products/leaf_gradient.h"
#include "tensor_parallel/products/matrix_product.h"
#include "tensor_parallel/vocabulary_shard.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The arguments besides x and labels. The weight is here and not among the saved variables, because its storage may be
/// refilled between forward and backward.
struct Head : torch::CustomClassHolder {
  Head(const Parameter& parameter, int64_t ignored_id, const TensorParallel& parallel, int64_t tokens_at_once,
       double cap)
      : weight(parameter.tensor),
        first(parameter.box.start[0]),
        valid(parameter.box.size[0]),
        ignored(ignored_id),
        tp(parallel),
        chunk_tokens(tokens_at_once),
        softcap(cap),
        statistics(parallel.group.with_purpose("tp.cross_entropy")) {
    tp.group = tp.group.with_purpose("tp.linear");
  }

  /// Returns the weight without padding, [valid, M].
  at::Tensor rows() const { return weight.detach().narrow(0, 0, valid); }

  at::Tensor
      weight;  ///< [V/tp rounded up, M]: the ids from `first` on, of which `valid` are there (0 and all included)
  int64_t first;
  int64_t valid;
  int64_t ignored;
  TensorParallel tp;
  int64_t chunk_tokens;
  double softcap;  // 0: none
  Group statistics;
};

using HeadPointer = c10::intrusive_ptr<Head>;

/// Returns the number of chunks whose logits are alive at a time: when ranks communicate, the next chunk is computed
/// during the communication.
int chunks_alive(const TensorParallel& tp) {
  return tp.group.size() > 1 ? 2 : 1;
}

/// Some tokens on this rank's part of the vocabulary: their loss, then the gradient of their logits. Call the functions
/// in the order of their declarations; the first two are collective.
class Chunk {
 public:
  /// Computes the logits of x [n, M], labels [n], and issues the all-reduce of their maxima.
  Chunk(const at::Tensor& x, const at::Tensor& labels, const Head& head) : logits_(product(x, head.rows())) {
    if (head.softcap > 0) {
      logits_.div_(head.softcap).tanh_();
      slope_ = 1 - logits_.square();
      logits_.mul_(head.softcap);
    }
    labels_.ignored = labels.eq(head.ignored);
    ShardIds ids = shard_ids(labels, head.first, head.valid);
    labels_.column = ids.local;
    labels_.absent = ids.absent.bitwise_or_(labels_.ignored);
    statistics_ = any() ? row_statistics(logits_, labels_) : none();
    max_ = statistics_[0];
    if (chunks_alive(head.tp) == 1) return;
    max_ = max_.clone();
    under_way_ = head.statistics.all_reduce(max_, Reduce::Max);
  }

  /// Issues the all-reduce of the sums.
  void start_sums(const Head& head) {
    if (chunks_alive(head.tp) == 1) return;
    under_way_.wait();
    statistics_[1].mul_(statistics_[0].sub(max_).exp_());
    at::Tensor sums = statistics_.narrow(0, 1, 2);
    under_way_ = head.statistics.all_reduce(sums);
  }

  /// Returns the sum of the losses over the tokens, over the complete vocabulary.
  at::Tensor loss() const {
    under_way_.wait();
    return statistics_[1].log().add_(max_).sub_(statistics_[2]).masked_fill_(labels_.ignored, 0).sum();
  }

  /// Returns the gradient of the logits, [n, valid], for the scalar gradient `upstream` of the loss, in the memory of
  /// the logits. Call once.
  const at::Tensor& gradient(const at::Tensor& upstream) {
    if (!any()) return logits_;
    row_gradients(logits_, statistics_[0], max_, statistics_[1], labels_, upstream);
    if (slope_.defined()) logits_.mul_(slope_);
    return logits_;
  }

 private:
  /// Returns true when this rank has ids at all.
  bool any() const { return logits_.size(1) > 0; }

  /// Returns the statistics of a rank without ids.
  at::Tensor none() const {
    const at::ScalarType wide = accumulation_dtype(logits_.scalar_type());
    at::Tensor statistics = at::zeros({3, logits_.size(0)}, logits_.options().dtype(wide));
    statistics[0].fill_(-std::numeric_limits<double>::infinity());
    return statistics;
  }

  at::Tensor logits_;  // [n, valid], capped; later the gradient
  at::Tensor slope_;   // [n, valid], of the cap; undefined without one
  RowLabels labels_;
  at::Tensor statistics_;  // [3, n], see row_statistics(): of this rank; after start_sums() [1] and [2] are sums over
                           // all ranks
  at::Tensor max_;         // [n], over the complete vocabulary
  Work under_way_;         // the last all-reduce
};

/// Calls finish(chunk, first, count) for chunks of at most head.chunk_tokens tokens, as few and as equal as possible.
/// Collective. When ranks communicate, begins the next chunk before one is finished, the same on all ranks.
template <class Finish>
void for_chunks(const at::Tensor& x, const at::Tensor& labels, const Head& head, Finish finish) {
  const int64_t tokens = labels.numel(), chunks = (tokens + head.chunk_tokens - 1) / head.chunk_tokens;
  std::optional<Chunk> chunk, next;
  for (int64_t i = 0; i < chunks; ++i) {
    const auto begin = [&](int64_t chunk_number) { return tokens * chunk_number / chunks; };
    const auto start = [&](std::optional<Chunk>& to, int64_t from) {
      const int64_t first = begin(from), count = begin(from + 1) - first;
      to.emplace(x.narrow(0, first, count), labels.narrow(0, first, count), head);
    };
    if (!chunk) start(chunk, i);
    chunk->start_sums(head);
    if (chunks_alive(head.tp) > 1 && i + 1 < chunks) start(next, i + 1);
    finish(*chunk, begin(i), begin(i + 1) - begin(i));
    chunk = std::exchange(next, std::nullopt);
  }
}

PendingTensor start_gather(const at::Tensor& x, const TensorParallel& tp) {
  return tp.splits_rows() ? start_gather_rows(x, tp.group) : PendingTensor{x, {}};
}

/// Starts the sum of every rank's gradient of x.
PendingTensor start_sum(const at::Tensor& dx, const TensorParallel& tp) {
  if (tp.splits_rows()) return start_scatter_rows(dx, tp.group);
  PendingTensor sum{dx, {}};
  sum.work = tp.group.all_reduce(sum.tensor);
  return sum;
}

at::Tensor loss_alone(const at::Tensor& x, const at::Tensor& labels, const Head& head) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = start_gather(x, head.tp).wait();
  at::Tensor loss = at::zeros({}, x.options().dtype(accumulation_dtype(x.scalar_type())).requires_grad(false));
  for_chunks(rows, labels, head, [&](const Chunk& chunk, int64_t, int64_t) { loss.add_(chunk.loss()); });
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
    return value.detach();  // the output knows its graph, so keeping the output would leak it
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
    // Chunks add up in fp32: a gradient in a half would be rounded once a chunk.
    const bool several = labels.numel() > head->chunk_tokens;
    const bool apart = needs_weight && several && c10::isReducedFloatingType(weight_gradient.scalar_type());
    const at::Tensor rows = !needs_weight ? at::Tensor() : weight_gradient.narrow(0, 0, head->valid);
    const at::Tensor sum = apart ? at::empty(rows.sizes(), rows.options().dtype(at::kFloat)) : rows;
    const int64_t written = labels.numel() > 0 ? head->valid : 0;  // rows that products write
    if (target.unwritten) weight_gradient.narrow(0, written, head->weight.size(0) - written).zero_();
    const at::Tensor x = start_gather(saved[0], head->tp).wait();
    const at::Tensor full_dx = needs_x ? at::empty(x.sizes(), x.options()) : at::Tensor();
    PendingTensor dx;
    at::Tensor value = ctx->saved_data["value"].toTensor().zero_();
    for_chunks(x, labels, *head, [&](Chunk& chunk, int64_t first, int64_t count) {
      value.add_(chunk.loss());
      const at::Tensor gradient = chunk.gradient(upstream);
      if (needs_x) {
        product_into(full_dx.narrow(0, first, count), gradient, head->rows().t());
        if (first + count == labels.numel()) dx = start_sum(full_dx, head->tp);
      }
      const bool writes = (apart || target.unwritten) && first == 0;
      if (needs_weight) add_product(sum, gradient, x.narrow(0, first, count), writes);
    });
    if (apart && target.unwritten) rows.copy_(sum);
    if (apart && !target.unwritten) rows.add_(sum);
    return {needs_x ? dx.wait() : at::Tensor(), returned ? weight_gradient : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

int64_t head_chunk_tokens(at::DeviceType device, int64_t tokens, int64_t rows, int64_t element_bytes,
                          int chunks_alive) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const bool cuda = device == at::kCUDA;
  const int64_t logit_bytes = (cuda ? kCudaLogitBytes : kHostLogitBytes) / chunks_alive;
  const int64_t most = std::max<int64_t>(1, logit_bytes / std::max<int64_t>(1, rows * element_bytes));
  const int64_t chunks = std::max({int64_t{1}, up(tokens, most), cuda ? tokens / kCudaChunkTokens : 0});
  return std::max<int64_t>(1, up(tokens, chunks));
}

at::Tensor linear_cross_entropy(const at::Tensor& x, const Parameter& head, const at::Tensor& labels, int64_t ignored,
                                const TensorParallel& tp, std::optional<int64_t> chunk_tokens, double softcap) {
  const at::Tensor& weight = head.tensor;
  const int alive = chunks_alive(tp) * (softcap > 0 ? 2 : 1);
  const int64_t tokens_at_once = chunk_tokens ? *chunk_tokens
                                              : head_chunk_tokens(stood_for(x.device()), labels.numel(), weight.size(0),
                                                                  weight.element_size(), alive);
  const auto kept = c10::make_intrusive<Head>(head, ignored, tp, tokens_at_once, softcap);
  const bool recorded = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return recorded ? LinearCrossEntropy::apply(x, weight, labels, kept) : loss_alone(x, labels, *kept);
}

}  // namespace meshtrain

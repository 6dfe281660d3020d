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
       double cap, AdapterTerms adapter_terms, LogitsZLoss z)
      : weight(parameter.tensor),
        adapter(std::move(adapter_terms)),
        first(parameter.box.start[0]),
        valid(parameter.box.size[0]),
        ignored(ignored_id),
        tp(parallel),
        chunk_tokens(tokens_at_once),
        softcap(cap),
        z_loss(std::move(z)),
        statistics(parallel.group.with_purpose("tp.cross_entropy")) {
    tp.group = tp.group.with_purpose("tp.linear");
  }

  /// Returns the weight without padding, [valid, M].
  at::Tensor rows() const { return weight.detach().narrow(0, 0, valid); }

  /// Returns the adapter without padding, for `count` tokens from `first` on.
  AdapterTerms terms(int64_t begin, int64_t count) const {
    AdapterTerms terms = adapter;
    for (at::Tensor& factor : terms.a) factor = factor.detach();
    for (at::Tensor& factor : terms.b) factor = factor.detach().narrow(0, 0, valid);
    if (terms.tokens.defined()) terms.tokens = terms.tokens.narrow(0, begin, count);
    return terms;
  }

  /// Returns the leaves: the weight, then the factors of the adapter.
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all = {weight};
    for (const auto* factors : {&adapter.a, &adapter.b}) all.insert(all.end(), factors->begin(), factors->end());
    return all;
  }

  at::Tensor
      weight;  ///< [V/tp rounded up, M]: the ids from `first` on, of which `valid` are there (0 and all included)
  AdapterTerms adapter;  ///< B: [V/tp rounded up, rank]
  int64_t first;
  int64_t valid;
  int64_t ignored;
  TensorParallel tp;
  int64_t chunk_tokens;
  double softcap;  // 0: none
  LogitsZLoss z_loss;
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
  Chunk(const at::Tensor& x, const at::Tensor& labels, const Head& head, AdapterTerms adapter)
      : logits_(product(x, head.rows())), adapter_(std::move(adapter)) {
    if (!adapter_.empty()) hidden_ = adapter_.add_to(logits_, x);
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

  /// Adds the sum of the z-loss to z.sum, and its gradient to what gradient() returns. Call between loss() and
  /// gradient().
  void add_z_loss(const LogitsZLoss& z) {
    if (z.coefficient == 0) return;
    const at::Tensor log_sum = statistics_[1].log().add_(max_);
    at::Tensor(z.sum).add_(log_sum.square().masked_fill_(labels_.ignored, 0).sum());
    // Each logit's gradient is the softmax times 1 + 2 c logsumexp, less 1 at the label: the softmax of a smaller sum.
    statistics_[1].div_(log_sum.mul_(2 * z.coefficient).add_(1));
  }

  /// Returns the gradient of the logits, [n, valid], for the scalar gradient `upstream` of the loss, in the memory of
  /// the logits. Call once.
  const at::Tensor& gradient(const at::Tensor& upstream) {
    if (!any()) return logits_;
    row_gradients(logits_, statistics_[0], max_, statistics_[1], labels_, upstream);
    if (slope_.defined()) logits_.mul_(slope_);
    return logits_;
  }

  const AdapterTerms& adapter() const { return adapter_; }
  /// Returns drop(x) A^T, [n, rank].
  const at::Tensor& hidden() const { return hidden_; }

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
  AdapterTerms adapter_;
  at::Tensor hidden_;  // [n, rank]; undefined without an adapter
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
      to.emplace(x.narrow(0, first, count), labels.narrow(0, first, count), head, head.terms(first, count));
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
  for_chunks(rows, labels, head, [&](Chunk& chunk, int64_t, int64_t) {
    loss.add_(chunk.loss());
    chunk.add_z_loss(head.z_loss);
  });
  return loss;
}

/// The gradient of a leaf, added up chunk by chunk: in fp32 when it is a half and there are several chunks, because a
/// half would be rounded once a chunk.
class ChunkedGradient {
 public:
  /// `valid`: rows of the leaf without padding; `tokens`: of all chunks.
  ChunkedGradient(const at::Tensor& leaf, bool needed, int64_t valid, int64_t tokens, const Head& head)
      : needed_(needed) {
    if (!needed) return;
    const GradientTarget target = gradient_target(leaf);
    returned_ = !target.buffer.defined();
    writes_ = target.unwritten;
    gradient_ = returned_ ? at::zeros_like(leaf) : target.buffer;
    rows_ = gradient_.narrow(0, 0, valid);
    apart_ = tokens > head.chunk_tokens && c10::isReducedFloatingType(gradient_.scalar_type());
    sum_ = apart_ ? at::empty(rows_.sizes(), rows_.options().dtype(at::kFloat)) : rows_;
    const int64_t written = tokens > 0 ? valid : 0;  // rows that products write
    if (writes_) gradient_.narrow(0, written, leaf.size(0) - written).zero_();
  }

  bool needed() const { return needed_; }

  /// Adds a^T b, of a chunk.
  void add(const at::Tensor& a, const at::Tensor& b) {
    add_product(sum_, a, b, (apart_ || writes_) && is_first_);
    is_first_ = false;
  }

  /// Returns the gradient that autograd must receive. Call once.
  at::Tensor finish() {
    if (apart_ && !is_first_) writes_ ? rows_.copy_(sum_) : rows_.add_(sum_);
    return returned_ ? gradient_ : at::Tensor();
  }

 private:
  bool needed_;
  bool returned_ = false, writes_ = false, apart_ = false, is_first_ = true;
  at::Tensor gradient_;  // [shape of the leaf]
  at::Tensor rows_;      // without padding
  at::Tensor sum_;       // of chunks so far
};

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList, const at::Tensor& labels,
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
    const bool needs_x = ctx->needs_input_grad(0);
    const int64_t tokens = labels.numel();
    ChunkedGradient of_weight(head->weight, ctx->needs_input_grad(1), head->valid, tokens, *head);
    std::vector<ChunkedGradient> of_a, of_b;  // one or none
    for (const at::Tensor& a : head->adapter.a)
      of_a.emplace_back(a, ctx->needs_input_grad(2), a.size(0), tokens, *head);
    for (const at::Tensor& b : head->adapter.b)
      of_b.emplace_back(b, ctx->needs_input_grad(3), head->valid, tokens, *head);
    const at::Tensor x = start_gather(saved[0], head->tp).wait();
    const at::Tensor full_dx = needs_x ? at::empty(x.sizes(), x.options()) : at::Tensor();
    PendingTensor dx;
    at::Tensor value = ctx->saved_data["value"].toTensor().zero_();
    for_chunks(x, labels, *head, [&](Chunk& chunk, int64_t first, int64_t count) {
      value.add_(chunk.loss());
      chunk.add_z_loss(head->z_loss);
      const at::Tensor gradient = chunk.gradient(upstream), rows = x.narrow(0, first, count);
      const AdapterTerms& adapter = chunk.adapter();
      const at::Tensor hidden_gradient = adapter.empty() ? at::Tensor() : adapter.hidden_gradient(gradient);
      if (needs_x) {
        at::Tensor own = full_dx.narrow(0, first, count);
        product_into(own, gradient, head->rows().t());
        if (!adapter.empty()) adapter.add_input_gradient(own, hidden_gradient);
        if (first + count == tokens) dx = start_sum(full_dx, head->tp);
      }
      if (of_weight.needed()) of_weight.add(gradient, rows);
      for (ChunkedGradient& factor : of_a) {
        if (factor.needed()) factor.add(hidden_gradient, adapter.dropped(rows));
      }
      for (ChunkedGradient& factor : of_b) {
        if (factor.needed()) factor.add(gradient, chunk.hidden() * adapter.scales[0]);
      }
    });
    variable_list gradients = {needs_x ? dx.wait() : at::Tensor(), of_weight.finish()};
    for (ChunkedGradient& factor : of_a) gradients.push_back(factor.finish());
    for (ChunkedGradient& factor : of_b) gradients.push_back(factor.finish());
    gradients.resize(gradients.size() + 2);  // labels, the head
    return gradients;
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
                                const TensorParallel& tp, std::optional<int64_t> chunk_tokens, double softcap,
                                const AdapterTerms& adapter, const LogitsZLoss& z_loss) {
  const at::Tensor& weight = head.tensor;
  const int alive = chunks_alive(tp) * (softcap > 0 ? 2 : 1);
  const int64_t tokens_at_once = chunk_tokens ? *chunk_tokens
                                              : head_chunk_tokens(stood_for(x.device()), labels.numel(), weight.size(0),
                                                                  weight.element_size(), alive);
  const auto kept = c10::make_intrusive<Head>(head, ignored, tp, tokens_at_once, softcap, adapter, z_loss);
  const std::vector<at::Tensor> leaves = kept->leaves();
  const auto is_trained = [](const at::Tensor& leaf) { return leaf.requires_grad(); };
  const bool recorded = at::GradMode::is_enabled() && (x.requires_grad() || std::ranges::any_of(leaves, is_trained));
  at::TensorList list = leaves;
  return recorded ? LinearCrossEntropy::apply(x, list, labels, kept) : loss_alone(x, labels, *kept);
}

}  // namespace meshtrain

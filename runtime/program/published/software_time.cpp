#include <cmath>
#include <map>
#include <vector>

#include "mesh/layout.h"

#include "runtime/program/published/software.h"

namespace meshtrain {
namespace {

/// Bytes that others read and write for each that our fused operator does.
struct OperatorBytes {
  double compiled, eager;
};

// Counted from the operators of PyTorch, a byte for each element of a feature of the input, in bf16. Norms: ours read
// and write 2 each; eager ones cast to fp32 (6), square (8), average (4), scale (8), cast back (6) and multiply (6);
// the backward has twice as many. Rotation: eager casts to fp32 (6), multiplies as complex numbers (8) and casts back
// (6), and k and v are repeated for each query head, which ours are not. SwiGLU: silu and product apart. torch.compile
// fuses each between two products, and keeps fp32 numbers and k and v repeated.
const std::map<std::string, OperatorBytes, std::less<>> kOperators = {
    {"meshtrain::rms_norm", {1.3, 9.5}},
    {"meshtrain::rms_norm_of_sum", {1.2, 5.5}},
    {"meshtrain::rms_norm_backward", {1.3, 8}},
    {"meshtrain::rotate", {2, 5}},
    {"meshtrain::glu", {1, 1.7}},
    {"meshtrain::glu_backward", {1, 1.5}},
    {"aten::add", {1, 1}},
};

/// Rewrites the events of a step, one after the other.
class Translator {
 public:
  Translator(const Timeline& timeline, const Software& software, const PublishedRun& run, const ModelShape& shape,
             int64_t tokens)
      : from_(timeline), software_(software), run_(run), shape_(shape), tokens_(tokens) {
    has_pipeline_ = run.gpus > run.dp * run.tp * run.cp;
    queries_ = shape.num_attention_heads * shape.head_dim / run.tp;
    keys_ = shape.num_key_value_heads * shape.head_dim / run.tp;
    features_ = shape.intermediate_size / run.tp;
    vocabulary_ = (shape.vocab_size + run.tp - 1) / run.tp;
  }

  void operator()(const OperatorCall& call) {
    OperatorCall own = call;
    own.signature = -1;
    if (call.kind == OperatorCall::Kind::Product) {
      product(own);
      return;
    }
    if (call.kind == OperatorCall::Kind::Attention) {
      own.flops /= software_.attention_share;
    } else {
      const OperatorSignature& signature = from_.signatures[static_cast<size_t>(call.signature)];
      own.bytes *= factor_of(signature.name.name);
      if (software_.fuses_expert_rows && !take_expert_rows(own, signature)) return;
    }
    to_.events.emplace_back(own);
  }

  void operator()(const ActionBegin& begin) { to_.events.emplace_back(begin); }

  void operator()(const CollectiveCall& call) {
    using Kind = Collective::Kind;
    CollectiveCall own = call;
    const bool is_tensor = call.group == kTensorAxis;
    const bool is_parameters = !is_tensor && call.kind == Kind::AllGather, is_large = call.buffer_bytes > 1e6;
    const bool is_gradients = !is_tensor && call.kind == Kind::ReduceScatter;
    if (software_.sends_rows_once && call.group == kExpertAxis) {
      const double share = share_of_rows(call);
      own.buffer_bytes *= share;
      own.sent_bytes *= share;
    }
    if (is_tensor && software_.tensor_parallel == Software::TensorParallel::Pipelined) {
      own.buffer_bytes /= call.size;  // what remains beside no product is one piece
      own.sent_bytes /= call.size;
    }
    if (is_parameters && software_.fp8_gathers && !is_head_unit(call)) {
      own.buffer_bytes /= 2;
      own.sent_bytes /= 2;
    }
    to_.events.emplace_back(own);
    ++collectives_;
    hidden_.push_back(software_.hides_sharding && has_pipeline_ && (is_parameters || is_gradients));
    if (software_.copies_units && is_large && is_parameters) move(2 * own.buffer_bytes);
    if (software_.copies_units && is_large && is_gradients) move(1.5 * own.buffer_bytes);
    const bool is_awaited = is_tensor ? software_.tensor_parallel == Software::TensorParallel::Awaited
                                      : software_.awaits_sharding && (is_parameters || is_gradients);
    if (is_awaited) {
      to_.events.emplace_back(CollectiveWait{collectives_ - 1});
    }
  }

  void operator()(const CollectiveWait& wait) {
    if (!hidden_[wait.collective]) to_.events.emplace_back(wait);
  }
  void operator()(const CopyCall& call) { to_.events.emplace_back(call); }
  void operator()(const CopyWait& wait) { to_.events.emplace_back(wait); }

  Timeline take() { return std::move(to_); }

 private:
  void product(OperatorCall own) {
    const auto [batch, rows, columns, summed] = own.product;
    const bool is_head = rows == vocabulary_ || columns == vocabulary_ || summed == vocabulary_;
    const bool is_weight_gradient = !is_head && summed == tokens_;
    if (is_head) {
      // A loss on all logits at once: its bytes beyond ours, at the product that makes them.
      if (columns == vocabulary_) move(software_.logit_bytes_moved * static_cast<double>(rows * columns));
      to_.events.emplace_back(own);
      return;
    }
    if (software_.fp8_products) {
      const double cast = is_weight_gradient ? 0 : static_cast<double>(rows * summed);
      move(software_.fp8_cast_bytes * cast, own.times);
      own.dtype = c10::ScalarType::Float8_e4m3fn;
      own.bytes *= 0.75;  // operands of one byte, a result of two
    }
    to_.events.emplace_back(own);
    if (is_weight_gradient || !after_head_ || run_.checkpointing != "selective") return;
    if (software_.selective == Software::Selective::EverySecondProduct) recompute(own);
  }

  /// Adds the forward products that are computed again beside the gradient of a product's input: k of q, k, v; o; up of
  /// gate and up.
  void recompute(OperatorCall gradient) {
    const auto [batch, rows, columns, summed] = gradient.product;
    int64_t features = 0;
    if (summed == queries_ + 2 * keys_) features = keys_;
    if (summed == 2 * features_) features = features_;
    if (columns == queries_ && summed == shape_.hidden_size) features = summed;
    if (features == 0) return;
    gradient.flops *= static_cast<double>(features) / static_cast<double>(summed);
    gradient.product = {batch, rows, features, columns};
    to_.events.emplace_back(gradient);
  }

  /// Returns the share of rows that go to another rank, or of several hosts to another host, when a token's slots there
  /// share one row: the slots choose independently.
  double share_of_rows(const CollectiveCall& call) const {
    const double places = call.num_hosts > 1 ? call.num_hosts : call.size;
    const auto slots = static_cast<double>(shape_.experts.num_experts_per_tok);
    const double once = (places - 1) * (1 - std::pow(1 - 1 / places, slots));
    return once / (slots * (places - 1) / places);
  }

  /// Changes the bytes of an operator on experts' rows to those of a fused kernel, which reads and writes rows in bf16
  /// and keeps the rest in registers. Returns false for an operator that such a kernel has no memory traffic for.
  bool take_expert_rows(OperatorCall& call, const OperatorSignature& signature) const {
    if (shape_.experts.num_experts == 0 || signature.inputs.empty() || !signature.inputs[0].isTensor()) return true;
    const at::Tensor& first = signature.inputs[0].toTensor();
    if (!first.defined() || first.dim() != 2 || first.size(0) < tokens_ || first.numel() == 0) return true;
    const bool is_copy = signature.name.name == "aten::copy_";
    if (first.scalar_type() == at::kFloat || first.scalar_type() == at::kBool) {
      if (!is_copy || !is_half(signature.inputs[1])) return false;
      call.bytes = 2 * static_cast<double>(first.numel());
      return true;
    }
    if (is_copy && !is_half(signature.inputs[1])) call.bytes = 2 * static_cast<double>(first.numel());
    // A row's weight is applied where the row is made.
    const bool has_weights = signature.name.name == "aten::mul_" && signature.inputs[1].isTensor();
    return !has_weights || signature.inputs[1].toTensor().numel() != first.size(0);
  }

  static bool is_half(const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == at::kBFloat16;
  }

  double factor_of(const std::string& name) {
    if (name.starts_with("meshtrain::cross_entropy")) after_head_ = true;
    const auto found = kOperators.find(name);
    if (found == kOperators.end() || software_.elementwise == Software::Elementwise::Fused) return 1;
    return software_.elementwise == Software::Elementwise::Eager ? found->second.eager : found->second.compiled;
  }

  bool is_head_unit(const CollectiveCall& call) const {
    const double numel = static_cast<double>(vocabulary_) * static_cast<double>(shape_.hidden_size);
    return call.buffer_bytes > 1.9 * numel && call.buffer_bytes < 2.1 * numel;
  }

  /// Adds an operator that reads and writes so many bytes.
  void move(double bytes, int64_t times = 1) {
    if (bytes <= 0) return;
    OperatorCall call;
    call.dtype = c10::ScalarType::BFloat16;
    call.bytes = bytes;
    call.times = times;
    to_.events.emplace_back(call);
  }

  const Timeline& from_;
  const Software& software_;
  const PublishedRun& run_;
  const ModelShape& shape_;
  const int64_t tokens_;
  int64_t queries_, keys_, features_, vocabulary_;
  Timeline to_;
  size_t collectives_ = 0;
  std::vector<bool> hidden_;  // by collective: nothing waits for it
  bool has_pipeline_ = false;
  bool after_head_ = false;
};

}  // namespace

Timeline translated(const Timeline& timeline, const Software& software, const PublishedRun& run,
                    const ModelShape& shape, int64_t tokens) {
  Translator translator(timeline, software, run, shape, tokens);
  for (const Timeline::Event& event : timeline.events) std::visit(translator, event);
  return translator.take();
}

}  // namespace meshtrain

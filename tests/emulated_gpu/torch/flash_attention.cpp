// Flash attention for variable or equal lengths, with a window; LibTorch has it only for CUDA. Results have CUDA's
// shapes, dtypes and memory orders. They are computed from the definition, with a mask, in stream order, so that the
// host reads no value.
#include <torch/library.h>

#include <limits>
#include <optional>
#include <tuple>

#include "mesh/device/aten.h"

namespace meshtrain::emulated {
namespace {

using Tensor = at::Tensor;
using OptionalInt = std::optional<c10::SymInt>;
using FlashForward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Checks properties that LibTorch does not check, and dtypes that callers easily confuse. tests/null_gpu runs
/// LibTorch's own checks.
void check(const char* name, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& ends_q,
           const Tensor& ends_k, int64_t max_q, int64_t max_k, double dropout) {
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && k.sizes() == v.sizes() && q.size(2) == k.size(2), name, ": ", q.sizes(),
              ", ", k.sizes(), ", ", v.sizes());
  TORCH_CHECK(c10::isReducedFloatingType(q.scalar_type()), name, ": only supports fp16 and bf16");
  TORCH_CHECK(ends_q.scalar_type() == at::kInt && ends_k.scalar_type() == at::kInt, name,
              ": cumulative lengths must have dtype int32");
  for (const Tensor& each : {q, k, v}) {
    TORCH_CHECK(each.stride(0) % 8 == 0 && each.stride(1) % 8 == 0 && each.storage_offset() % 8 == 0, name,
                ": reads 16 bytes at once, from ", each.strides());
  }
  TORCH_CHECK(max_q > 0 && max_k > 0 && dropout == 0, name, ": longest ", max_q, " and ", max_k, ", dropout ", dropout);
  // From 1 on, flash turns query heads into queries, and assumes one query in every sequence.
  TORCH_CHECK(max_q > 1 || q.size(1) == k.size(1) || q.size(0) + 1 == ends_q.size(0), name, ": one query of several");
}

/// For each row its sequence, its position in it, and the sequence's length: [n], int64. Uses no indices, because
/// lengths that are not written yet may have any value.
struct Rows {
  Rows(const Tensor& ends, int64_t count) {
    const int64_t sequences = ends.size(0) - 1;
    const Tensor rows = at::arange(count, ends.options().dtype(at::kLong)), wide = ends.to(at::kLong).unsqueeze(1);
    const Tensor first = wide.narrow(0, 0, sequences), end = wide.narrow(0, 1, sequences);
    const Tensor holds = first.le(rows).logical_and(end.gt(rows)).to(at::kLong);  // [sequences, n]
    sequence = (holds * at::arange(sequences, rows.options()).unsqueeze(1)).sum(0);
    offset = rows - (holds * first).sum(0);
    length = (holds * (end - first)).sum(0);
    in_none = holds.sum(0).eq(0);
  }
  /// Returns 0, or NaN for rows that the kernel does not reach.
  Tensor computed(int64_t longest) const {
    return at::where(in_none.logical_or(offset.ge(longest)), kNan, 0.0).to(at::kFloat);
  }
  Tensor sequence, offset, length, in_none;
};

/// Returns scores [H, T, U] in fp32, minus infinity where a key is not seen. Causal aligns the ends of both; `left`:
/// the number of keys before its own that a query sees.
Tensor scores_of(const Tensor& q, const Tensor& keys, const Rows& of_q, const Rows& of_k, bool causal, OptionalInt left,
                 double scale) {
  const auto down = [](const Tensor& x) { return x.unsqueeze(1); };
  Tensor seen = down(of_q.sequence).eq(of_k.sequence);
  const Tensor own = down(of_q.offset) + of_k.length - down(of_q.length);
  if (causal) seen = seen.logical_and(of_k.offset.le(own));
  if (left) seen = seen.logical_and(of_k.offset.ge(own - left->expect_int()));
  const Tensor scores = q.to(at::kFloat).transpose(0, 1).matmul(keys.permute({1, 2, 0})).mul(scale);
  return scores.masked_fill(seen.logical_not(), -kInfinity);
}

Tensor of_all_heads(const Tensor& x, int64_t heads) {
  return x.to(at::kFloat).repeat_interleave(heads / x.size(1), 1);
}

double scale_of(const Tensor& q, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(q.size(2))));
}

/// Checks a window: CUDA's kernel takes others, which meshtrain never asks for.
void check_window(const char* name, bool causal, OptionalInt left, OptionalInt right) {
  TORCH_CHECK(left.has_value() == right.has_value(), name, ": one side of a window");
  TORCH_CHECK(!left || (causal && *left >= 0 && *right == 0), name, ": no causal window");
}

/// The ends of sequences of equal lengths.
Tensor equal_ends(const Tensor& tensor) {  // [B, n, heads, D]
  return at::arange(tensor.size(0) + 1, tensor.options().dtype(at::kInt)).mul_(tensor.size(1));
}

FlashForward forward(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& ends_q,
                     const std::optional<Tensor>& ends_k, c10::SymInt max_q, c10::SymInt max_k, double dropout,
                     bool causal, bool debug, std::optional<double> scale, OptionalInt left, OptionalInt right,
                     const std::optional<Tensor>& used, const std::optional<Tensor>& slopes) {
  TORCH_CHECK(!debug && !used && !slopes, "flash: not emulated");
  check_window("flash", causal, left, right);
  if (!ends_q && !ends_k) {  // sequences of equal lengths, [B, n, heads, D]
    TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(0) == k.size(0) && max_q == q.size(1) &&
                    max_k == k.size(1),
                "flash: ", q.sizes(), ", ", k.sizes());
    auto [out, lse, seed, unused, mask] =
        forward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), equal_ends(q), equal_ends(k), max_q, max_k, dropout,
                causal, debug, scale, left, right, used, slopes);
    return {out.view(q.sizes()), lse.unflatten(1, {q.size(0), q.size(1)}).transpose(0, 1).contiguous(), seed, unused,
            mask};
  }
  TORCH_CHECK(ends_q && ends_k, "flash: lengths of one side");
  check("flash", q, k, v, *ends_q, *ends_k, max_q.expect_int(), max_k.expect_int(), dropout);
  const Rows of_q(*ends_q, q.size(0)), of_k(*ends_k, k.size(0));
  const int64_t heads = q.size(1);
  const Tensor scores = scores_of(q, of_all_heads(k, heads), of_q, of_k, causal, left, scale_of(q, scale));
  const Tensor lse = scores.logsumexp(2), none = lse.eq(-kInfinity);  // without keys: 0 and infinity
  const Tensor shares = (scores - lse.masked_fill(none, kInfinity).unsqueeze(2)).exp();
  const Tensor computed = of_q.computed(max_q.expect_int());
  const Tensor out =
      shares.matmul(of_all_heads(v, heads).transpose(0, 1)).transpose(0, 1) + computed.unsqueeze(1).unsqueeze(2);
  const Tensor result = at::empty_like(q);
  result.copy_(out);
  const at::TensorOptions options = q.options();
  return {result, (lse.masked_fill(none, kInfinity) + computed).contiguous(),
          at::empty({2}, options.dtype(at::kUInt64)), at::empty({}, options.dtype(at::kUInt64)),
          at::empty({0}, options)};
}

Gradients backward(const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                   const Tensor& lse, const Tensor& ends_q, const Tensor& ends_k, c10::SymInt max_q, c10::SymInt max_k,
                   double dropout, bool causal, const Tensor&, const Tensor&, std::optional<double> scale,
                   OptionalInt left, OptionalInt right) {
  check_window("flash backward", causal, left, right);
  if (!ends_q.defined() && !ends_k.defined()) {
    TORCH_CHECK(lse.dim() == 3 && lse.is_contiguous() && out.sizes() == q.sizes() && grad_out.sizes() == q.sizes(),
                "flash backward: log-sum-exp ", lse.sizes());
    const auto [dq, dk, dv] = backward(grad_out.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1),
                                       out.flatten(0, 1), lse.transpose(0, 1).flatten(1, 2).contiguous(), equal_ends(q),
                                       equal_ends(k), max_q, max_k, dropout, causal, {}, {}, scale, left, right);
    return {dq.view(q.sizes()), dk.view(k.sizes()), dv.view(v.sizes())};
  }
  check("flash backward", q, k, v, ends_q, ends_k, max_q.expect_int(), max_k.expect_int(), dropout);
  TORCH_CHECK(grad_out.sizes() == q.sizes() && out.sizes() == q.sizes() && grad_out.dtype() == q.dtype() &&
                  out.dtype() == q.dtype(),
              "flash backward: gradient and output must be as the queries");
  TORCH_CHECK(lse.scalar_type() == at::kFloat && lse.is_contiguous() && lse.dim() == 2 && lse.size(0) == q.size(1) &&
                  lse.size(1) == q.size(0),
              "flash backward: log-sum-exp ", lse.sizes(), " ", lse.dtype());
  const Rows of_q(ends_q, q.size(0)), of_k(ends_k, k.size(0));
  const int64_t heads = q.size(1), kv_heads = k.size(1);
  const double factor = scale_of(q, scale);
  const Tensor keys = of_all_heads(k, heads), values = of_all_heads(v, heads).transpose(0, 1);
  const Tensor grad = grad_out.to(at::kFloat).transpose(0, 1), queries = q.to(at::kFloat).transpose(0, 1);
  const Tensor shares = (scores_of(q, keys, of_q, of_k, causal, left, factor) - lse.unsqueeze(2)).exp();
  const Tensor delta = (grad * out.to(at::kFloat).transpose(0, 1)).sum(2, /*keepdim=*/true);
  const Tensor of_scores = shares * (grad.matmul(values.transpose(1, 2)) - delta) * factor;
  const auto written = [](const Tensor& like, const Tensor& values_of, const Tensor& computed) {
    const Tensor result = at::empty_like(like);
    result.copy_(values_of + computed.unsqueeze(1).unsqueeze(2));
    return result;
  };
  const auto shared = [&](const Tensor& each) {  // [H, U, D]
    return each.unflatten(0, {kv_heads, heads / kv_heads}).sum(1).transpose(0, 1);
  };
  const Tensor computed_q = of_q.computed(max_q.expect_int()), computed_k = of_k.computed(max_k.expect_int());
  return {written(q, of_scores.matmul(keys.transpose(0, 1)).transpose(0, 1), computed_q),
          written(k, shared(of_scores.transpose(1, 2).matmul(queries)), computed_k),
          written(v, shared(shares.transpose(1, 2).matmul(grad)), computed_k)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_flash_attention_forward", &forward);
  library.impl("_flash_attention_backward", &backward);
}

}  // namespace meshtrain::emulated

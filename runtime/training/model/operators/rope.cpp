#include "runtime/training/model/operators/rope.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/device_transfer.h"
#include "mesh/device/half_precision.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/operator.h"
#include "runtime/training/model/operators/rope_host.h"
#include "runtime/training/model/rope_scaling.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns true when the loops of rope_host.h rotate x [B, s, H, D] by angles [s, 1, D / 2], or [B, s, 1, D / 2], into
/// `out`: rows of all lie side by side.
bool has_rope_loops(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out) {
  const auto has_rows = [](const at::Tensor& tensor) { return tensor.stride(-1) == 1; };
  return has_lanes(x.scalar_type()) && cos.scalar_type() == x.scalar_type() && x.dim() == 4 && cos.is_contiguous() &&
         sin.is_contiguous() && has_rows(x) && has_rows(out) && cos.size(-2) == 1 && cos.size(-3) == x.size(1) &&
         (cos.dim() == 3 || (cos.dim() == 4 && cos.size(0) == x.size(0)));
}

template <class Set, class T>
void rotate_in_loops(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back, at::Tensor& out) {
  const int64_t length = x.size(1), half = cos.size(-1), angles = cos.numel() / half;
  const rope_host::Heads heads{x.size(2), half, x.stride(2), out.stride(2)};
  const T *const from = x.const_data_ptr<T>(), *const c = cos.const_data_ptr<T>(), *const s = sin.const_data_ptr<T>();
  T* const to = out.data_ptr<T>();
  for_row_ranges(x.size(0) * length, x.size(2) * x.size(3), [&](int64_t begin, int64_t tokens) {
    for (int64_t token = begin; token < begin + tokens; ++token) {
      const int64_t sample = token / length, position = token % length, angle = token % angles * half;
      rope_host::rotate_heads<Set>(from + sample * x.stride(0) + position * x.stride(1), c + angle, s + angle, heads,
                                   back, to + sample * out.stride(0) + position * out.stride(1));
    }
  });
}

// Rotates x by the angle, or by its negative if `back`, into `out`, which may be x.
void rotate_heads(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back, at::Tensor& out) {
  if (has_rope_loops(x, cos, sin, out)) {
    if (x.is_meta()) return;
    return with_lanes(x.scalar_type(), [&]<class Set>(Set) {
      x.scalar_type() == at::kFloat ? rotate_in_loops<Set, float>(x, cos, sin, back, out)
                                    : rotate_in_loops<Set, c10::BFloat16>(x, cos, sin, back, out);
    });
  }
  const int64_t half = cos.size(-1);
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  at::Tensor out_first = out.narrow(-1, 0, half), out_second = out.narrow(-1, half, half);
  const at::Tensor first_before = out.is_alias_of(x) ? first.clone() : first;
  at::mul_out(out_first, first, cos).addcmul_(second, sin, back ? 1 : -1);
  at::mul_out(out_second, second, cos).addcmul_(first_before, sin, back ? -1 : 1);
}

// The kernel for CUDA rotates in place.
void rotate_on_gpu(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool, at::Tensor&) {
  const at::Tensor from = x.stride(3) == 1 ? x : x.contiguous(), c = cos.contiguous(), s = sin.contiguous();
}

void rotate_into(at::Tensor out, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  static const Operator<decltype(rotate_heads)> rotate_operator("meshtrain::rotate");
  const int64_t rotated = 2 * cos.size(-1), rest = x.size(-1) - rotated;
  if (rest == 0) return rotate_operator(x, cos, sin, back, out);
  at::Tensor part = out.narrow(-1, 0, rotated);
  rotate_operator(x.narrow(-1, 0, rotated), cos, sin, back, part);
  if (!out.is_alias_of(x)) out.narrow(-1, rotated, rest).copy_(x.narrow(-1, rotated, rest));
}

/// Returns the memory for the rotated x: that of x, under a version counter of its own so that other views of it do not
/// count as modified; new memory when x is a leaf.
at::Tensor output_for(const at::Tensor& x) {
  const bool is_kept = x.is_leaf() && x.requires_grad();
  return is_kept ? at::empty(x.sizes(), x.options()) : x.variable_data();
}

struct RotateFunction : torch::autograd::Function<RotateFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    const at::Tensor out = output_for(x);
    rotate_into(out, x, cos, sin, /*back=*/false);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor grad = at::empty(grads[0].sizes(), grads[0].options());  // others may need grads[0]
    rotate_into(grad, grads[0], saved[0], saved[1], /*back=*/true);
    return {grad, at::Tensor(), at::Tensor()};
  }
};

struct SplitRotated : torch::autograd::Function<SplitRotated> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& cos,
                               const at::Tensor& sin, int64_t num_heads, int64_t num_kv_heads) {
    ctx->save_for_backward({cos, sin});
    ctx->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView below;  // the parts are results, not views, to autograd
    const at::Tensor out = output_for(qkv);
    const int64_t rotated = num_heads + num_kv_heads;
    rotate_into(out.narrow(2, 0, rotated), qkv.narrow(2, 0, rotated), cos, sin, /*back=*/false);
    const at::Tensor values = out.narrow(2, rotated, num_kv_heads);
    if (!out.is_alias_of(qkv)) at::Tensor(values).copy_(qkv.narrow(2, rotated, num_kv_heads));
    ctx->saved_data["sizes"] = std::vector<int64_t>{num_heads, num_kv_heads, num_kv_heads};
    return {out.narrow(2, 0, num_heads), out.narrow(2, num_heads, num_kv_heads), values};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> heads = ctx->saved_data["sizes"].toIntVector();
    const auto some = std::find_if(grads.begin(), grads.end(), [](const at::Tensor& grad) { return grad.defined(); });
    if (some == grads.end()) return variable_list(5);
    std::vector<int64_t> sizes = some->sizes().vec();
    sizes[2] = heads[0] + heads[1] + heads[2];
    const at::Tensor grad = at::empty(sizes, some->options());
    int64_t first = 0;
    for (size_t i = 0; i < 3; ++i) {
      at::Tensor part = grad.narrow(2, first, heads[i]);
      if (!grads[i].defined()) {
        part.zero_();
      } else if (i < 2) {
        rotate_into(part, grads[i], saved[0], saved[1], /*back=*/true);
      } else {
        part.copy_(grads[i]);
      }
      first += heads[i];
    }
    return {grad, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

Rotary angles_of(const RopeFrequencies& of, const at::Tensor& positions, at::ScalarType dtype, at::Device device) {
  const auto& [frequencies, scale] = of;
  if (device.is_meta()) {  // a forecast would take most of its time for numbers that nobody reads
    std::vector<int64_t> sizes = positions.sizes().vec();
    sizes.insert(sizes.end(), {1, frequencies.size(-1)});
    const at::TensorOptions options = at::TensorOptions(device).dtype(dtype);
    return {at::empty(sizes, options), at::empty(sizes, options)};
  }
  const at::Tensor angles =
      (positions.to(at::kCPU, frequencies.scalar_type()).unsqueeze(-1) * frequencies).unsqueeze(-2);
  return {(angles.cos() * scale).to(dtype).to(device), (angles.sin() * scale).to(dtype).to(device)};
}

}  // namespace

Rotary make_rotary(const ModelShape& shape, const at::Tensor& positions, at::ScalarType dtype, at::Device device,
                   int64_t length) {
  return angles_of(rope_frequencies(shape, accumulation_dtype(dtype), length), positions, dtype, device);
}

Rotary make_local_rotary(const ModelShape& shape, const at::Tensor& positions, at::ScalarType dtype,
                         at::Device device) {
  if (shape.rope_local_base_freq <= 0) return {};
  return angles_of(local_rope_frequencies(shape, accumulation_dtype(dtype)), positions, dtype, device);
}

Rotary Rotary::select(const at::Tensor& rows) const {
  const at::Tensor there = to_device(rows, cos.device());
  return {cos.index({there}), sin.index({there})};
}

at::Tensor rotate(const at::Tensor& x, const Rotary& rotary) {
  return RotateFunction::apply(x, rotary.cos, rotary.sin);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> split_rotated(const at::Tensor& qkv, const Rotary& rotary,
                                                             int64_t num_heads, int64_t num_kv_heads) {
  variable_list parts = SplitRotated::apply(qkv, rotary.cos, rotary.sin, num_heads, num_kv_heads);
  return {std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&rotate_heads, &rotate_on_gpu>(library,
                                        "rotate(Tensor x, Tensor cos, Tensor sin, bool back, Tensor(a!) out) -> ()");
}

}  // namespace meshtrain

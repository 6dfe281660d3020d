#include "runtime/training/model/initialize.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cmath>
#include <numbers>

#include "mesh/base/philox.h"

namespace meshtrain {
namespace {

/// Returns a number in (0, 1], whose logarithm is finite.
double uniform(uint32_t high, uint32_t low) {
  return (static_cast<double>((uint64_t{high} << 32 | low) >> 11) + 1) * 0x1p-53;
}

/// Returns the two standard-normal values of elements 2 * pair and 2 * pair + 1.
std::array<double, 2> normal_pair(uint64_t pair, uint64_t key) {
  const Counter bits = philox({static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 0}, key);
  const double radius = std::sqrt(-2 * std::log(uniform(bits[0], bits[1])));
  const double angle = 2 * std::numbers::pi * uniform(bits[2], bits[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// Returns the two values in (-1, 1] of elements 2 * pair and 2 * pair + 1.
std::array<double, 2> uniform_pair(uint64_t pair, uint64_t key) {
  const Counter bits = philox({static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 0}, key);
  return {2 * uniform(bits[0], bits[1]) - 1, 2 * uniform(bits[2], bits[3]) - 1};
}

/// Fills `out` with the elements [first, first + count) of the global tensor.
void draw(double* out, int64_t first, int64_t count, uint64_t key, const Initializer& initializer) {
  const bool is_normal = initializer.kind == Initializer::Kind::Normal;
  const double scale = is_normal ? initializer.std : initializer.bound;
  int64_t index = first;
  while (index < first + count) {
    const auto number = static_cast<uint64_t>(index) / 2;
    const std::array<double, 2> pair = is_normal ? normal_pair(number, key) : uniform_pair(number, key);
    do {
      out[index - first] = scale * pair[index % 2];
      ++index;
    } while (index % 2 != 0 && index < first + count);
  }
}

/// Draws values for `box` of a tensor of `global_shape`, as a host tensor of doubles shaped like the box.
at::Tensor draw_box(const Box& box, const std::vector<int64_t>& global_shape, uint64_t key,
                    const Initializer& initializer) {
  at::Tensor values = at::empty(box.size, at::kDouble);
  const int64_t run = box.size.back();  // contiguous in the global tensor
  if (values.numel() == 0) return values;
  double* out = values.data_ptr<double>();
  const int64_t dims = static_cast<int64_t>(box.size.size());
  at::parallel_for(0, values.numel() / run, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t rest = row, first = 0, stride = global_shape.back();
      for (int64_t dim = dims - 2; dim >= 0; --dim) {
        first += (box.start[dim] + rest % box.size[dim]) * stride;
        rest /= box.size[dim];
        stride *= global_shape[dim];
      }
      draw(out + row * run, first + box.start.back(), run, key, initializer);
    }
  });
  return values;
}

}  // namespace

void initialize(const Parameter& parameter, uint64_t seed) {
  at::NoGradGuard no_grad;
  at::Tensor local = parameter.tensor.detach();
  switch (parameter.initializer.kind) {
    case Initializer::Kind::Zeros:
      local.zero_();
      return;
    case Initializer::Kind::Ones:
      parameter.valid().detach().fill_(1);
      return;
    case Initializer::Kind::Normal:
    case Initializer::Kind::Uniform:
      break;
  }
  if (local.device().type() == at::kMeta) return;
  at::Tensor valid = parameter.valid().detach();
  valid.copy_(draw_box(parameter.box, parameter.global_shape, philox_key(seed, parameter.name), parameter.initializer));
}

}  // namespace meshtrain

#include "runtime/training/optimizer/operators/stochastic_rounding.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

#include "mesh/device/aten.h"
#include "mesh/device/operator.h"
#include "runtime/training/optimizer/operators/rounding_bits.h"

namespace meshtrain {
namespace {

constexpr int64_t kPiece = 1 << 16;      // elements: a few of them fit into the second cache level
constexpr int64_t kCudaPiece = 1 << 24;  // elements: few kernels, and 64 MiB a tensor
constexpr int64_t kVector = 64;          // elements; a multiple of every processor's vectors

/// Rounds elements [begin, end) of a run, `rounded` and `exact` pointing at its first.
void round_run(c10::BFloat16* rounded, const float* exact, const ElementRun& run, int64_t begin, int64_t end,
               uint32_t step, uint32_t stream) {
  for (int64_t i = begin; i < end;) {
    const int64_t group = (run.index + i) / kElementsOfCounter, first = (run.index + i) % kElementsOfCounter;
    const Counter bits = rounding_bits(static_cast<uint64_t>(group), run.key, step, stream);
    const int64_t count = std::min(end - i, kElementsOfCounter - first);
    for (int64_t j = 0; j < count; ++j) {
      const uint32_t number = std::bit_cast<uint32_t>(exact[i + j]);
      rounded[i + j] = {rounded_by(number, bits_of(bits, first + j)), c10::BFloat16::from_bits()};
    }
    i += count;
  }
}

/// Adds the runs of elements [begin, end) of the local tensor, which are at `offset` in the range.
void add_runs(const Parameter& parameter, int64_t begin, int64_t end, int64_t offset, uint64_t key,
              std::vector<ElementRun>& runs) {
  const std::vector<int64_t>&shape = parameter.shape, &global = parameter.global_shape;
  const size_t dims = shape.size();
  const int64_t columns = shape.back();
  for (int64_t element = begin; element < end;) {
    int64_t rest = element / columns, first = 0, stride = global.back();
    bool valid = true;
    for (size_t dim = dims - 1; dim-- > 0;) {
      const int64_t at = rest % shape[dim];
      valid = valid && at < parameter.box.size[dim];
      first += (parameter.box.start[dim] + at) * stride;
      rest /= shape[dim];
      stride *= global[dim];
    }
    const int64_t column = element % columns, next = std::min(end, element - column + columns);
    const int64_t count = std::min(next - element, parameter.box.size.back() - column);
    const int64_t index = first + parameter.box.start.back() + column, in_range = offset + element - begin;
    if (valid && count > 0) {
      const bool joins = !runs.empty() && runs.back().key == key &&
                         runs.back().offset + runs.back().numel == in_range &&
                         runs.back().index + runs.back().numel == index;
      if (joins) {
        runs.back().numel += count;
      } else {
        runs.push_back({in_range, count, key, index});
      }
    }
    element = next;
  }
}

using Rounding = void(at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t, int64_t);

// The kernel for CUDA allocates nothing.
void round_on_gpu(at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t, int64_t) {}

/// Rounds on the CPU; does nothing on the Meta device.
void round_on_cpu(at::Tensor& rounded, const at::Tensor& exact, const at::Tensor& table, int64_t first, int64_t step,
                  int64_t stream) {
  if (rounded.is_meta()) return;
  if (rounded.scalar_type() != at::kBFloat16 || exact.scalar_type() != at::kFloat) {
    throw std::invalid_argument("stochastic rounding takes fp32 to bf16, not " +
                                std::string(c10::toString(exact.scalar_type())) + " to " +
                                c10::toString(rounded.scalar_type()) + " on " + rounded.device().str());
  }
  auto* to = rounded.data_ptr<c10::BFloat16>();
  const float* from = exact.const_data_ptr<float>();
  const std::span runs(static_cast<const ElementRun*>(table.const_data_ptr()), static_cast<size_t>(table.size(0)));
  const int64_t last = first + rounded.numel();
  auto run = std::partition_point(runs.begin(), runs.end(),
                                  [&](const ElementRun& each) { return each.offset + each.numel <= first; });
  for (; run != runs.end() && run->offset < last; ++run) {
    const int64_t begin = std::max<int64_t>(first - run->offset, 0), end = std::min(last - run->offset, run->numel);
    const int64_t shift = run->offset - first;  // of the run's first element, perhaps before this piece
    at::parallel_for(begin, end, 1 << 13, [&](int64_t b, int64_t e) {
      round_run(to + shift, from + shift, *run, b, e, static_cast<uint32_t>(step), static_cast<uint32_t>(stream));
    });
  }
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&round_on_cpu, &round_on_gpu>(
      library,
      "round_stochastically_(Tensor(a!) rounded, Tensor exact, Tensor runs, int first, int step, int stream) -> ()");
}

}  // namespace

at::Tensor table_of(const std::vector<ElementRun>& runs, at::Device device) {
  static_assert(sizeof(ElementRun) == 4 * sizeof(int64_t));
  const at::Tensor table = at::empty({static_cast<int64_t>(runs.size()), 4}, at::kLong);
  if (!runs.empty()) std::memcpy(table.mutable_data_ptr(), runs.data(), runs.size() * sizeof(ElementRun));
  return table.to(device);
}

void round_stochastically(const at::Tensor& rounded, const at::Tensor& exact, const at::Tensor& runs, int64_t first,
                          uint32_t step, uint32_t stream) {
  static const Operator<Rounding> round("meshtrain::round_stochastically_");
  at::Tensor to = rounded;
  round(to, exact, runs, first, step, stream);
}

at::Tensor StochasticRounding::runs(const FlatBuffer& buffer, Range range) const {
  std::vector<ElementRun> all;
  const int64_t begin = buffer.shard().offset + range.offset, end = begin + range.numel;
  for (const Segment& segment : buffer.segments()) {
    const int64_t from = std::max(begin, segment.offset), to = std::min(end, segment.offset + segment.numel);
    if (from >= to) continue;
    add_runs(*segment.parameter, from - segment.offset, to - segment.offset, from - begin,
             philox_key(seed_, segment.parameter->name), all);
  }
  return table_of(all, buffer.shard_values().device());
}

namespace {

/// Calls `update` with each piece of `tensors` and `gradients`, widened to fp32, and then `round(i, to, exact, first)`
/// to write the results to the piece of tensors[i] from element `first` on. Does nothing on the Meta device.
template <class Round>
void update_in_fp32(const std::vector<at::Tensor>& tensors, const at::Tensor& gradients,
                    const StochasticRounding::Update& update, const Round& round) {
  if (gradients.is_meta()) return;
  const int64_t piece = gradients.is_cpu() ? kPiece : kCudaPiece;
  const int64_t longest = (std::min(gradients.numel(), piece) + kVector - 1) / kVector * kVector;
  const at::TensorOptions wide = gradients.options().dtype(at::kFloat);
  std::vector<at::Tensor> exact;
  for (size_t i = 0; i < tensors.size(); ++i) exact.push_back(at::zeros({longest}, wide));
  const at::Tensor exact_gradients = at::zeros({longest}, wide);
  for (int64_t first = 0; first < gradients.numel(); first += piece) {
    const int64_t count = std::min(piece, gradients.numel() - first);
    for (size_t i = 0; i < tensors.size(); ++i) exact[i].narrow(0, 0, count).copy_(tensors[i].narrow(0, first, count));
    exact_gradients.narrow(0, 0, count).copy_(gradients.narrow(0, first, count));
    update(exact, exact_gradients);
    for (size_t i = 0; i < tensors.size(); ++i) {
      round(i, tensors[i].narrow(0, first, count), exact[i].narrow(0, 0, count), first);
    }
  }
}

}  // namespace

void StochasticRounding::apply(const std::vector<at::Tensor>& tensors, const at::Tensor& gradients,
                               const at::Tensor& runs, int64_t first, int64_t step, const Update& update) const {
  update_in_fp32(
      tensors, gradients, update, [&](size_t i, const at::Tensor& to, const at::Tensor& exact, int64_t begin) {
        if (to.scalar_type() == at::kFloat) {
          to.copy_(exact);
        } else {
          round_stochastically(to, exact, runs, first + begin, static_cast<uint32_t>(step), static_cast<uint32_t>(i));
        }
      });
}

void apply_update(const std::optional<StochasticRounding>& rounding, const std::vector<at::Tensor>& tensors,
                  const at::Tensor& gradients, const at::Tensor& runs, int64_t first, int64_t step,
                  const StochasticRounding::Update& update) {
  const at::ScalarType dtype = tensors.front().scalar_type();
  const bool mixed = std::any_of(tensors.begin(), tensors.end(),
                                 [&](const at::Tensor& tensor) { return tensor.scalar_type() != dtype; });
  if (rounding) {
    rounding->apply(tensors, gradients, runs, first, step, update);
  } else if (mixed) {
    update_in_fp32(tensors, gradients, update,
                   [](size_t, const at::Tensor& to, const at::Tensor& exact, int64_t) { to.copy_(exact); });
  } else {
    update(tensors, gradients);
  }
}

}  // namespace meshtrain

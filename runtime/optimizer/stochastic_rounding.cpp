#include "runtime/optimizer/stochastic_rounding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "runtime/random/philox.h"

namespace meshtrain {
namespace {

constexpr int64_t kPiece = 1 << 16;      // elements: a few of them fit into the second cache level
constexpr int64_t kCudaPiece = 1 << 24;  // elements: few kernels, and 64 MiB a tensor
constexpr int64_t kVector = 64;          // elements; a multiple of every processor's vectors
constexpr int64_t kPerCounter = 8;       // elements that the 128 bits of one counter serve

/// Rounds by `random`, 16 bits.
c10::BFloat16 rounded_with(float exact, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(exact);
  const bool finite = (bits & 0x7F800000) != 0x7F800000;
  if (!finite) return c10::BFloat16(exact);
  return c10::BFloat16(static_cast<uint16_t>((bits + random) >> 16), c10::BFloat16::from_bits());
}

/// Rounds elements [begin, end) of a run, `rounded` and `exact` pointing at its first.
void round_run(c10::BFloat16* rounded, const float* exact, const ElementRun& run, int64_t begin, int64_t end,
               uint32_t step, uint32_t stream) {
  for (int64_t i = begin; i < end;) {
    const uint64_t group = static_cast<uint64_t>(run.index + i) / kPerCounter;
    const Counter bits =
        philox({static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), step, stream + 1}, run.key);
    const int64_t place = (run.index + i) % kPerCounter;
    const int64_t count = std::min(end - i, kPerCounter - place);
    for (int64_t j = 0; j < count; ++j) {
      const uint32_t word = bits[static_cast<size_t>(place + j) / 2];
      rounded[i + j] = rounded_with(exact[i + j], (place + j) % 2 == 0 ? word & 0xFFFF : word >> 16);
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
      const int64_t place = rest % shape[dim];
      valid = valid && place < parameter.box.size[dim];
      first += (parameter.box.start[dim] + place) * stride;
      rest /= shape[dim];
      stride *= global[dim];
    }
    const int64_t column = element % columns, next = std::min(end, element - column + columns);
    const int64_t count = std::min(next - element, parameter.box.size.back() - column);
    const int64_t index = first + parameter.box.start.back() + column, place = offset + element - begin;
    if (valid && count > 0) {
      const bool joins = !runs.empty() && runs.back().key == key && runs.back().offset + runs.back().numel == place &&
                         runs.back().index + runs.back().numel == index;
      if (joins) {
        runs.back().numel += count;
      } else {
        runs.push_back({place, count, key, index});
      }
    }
    element = next;
  }
}

}  // namespace

void round_stochastically(const at::Tensor& rounded, const at::Tensor& exact, const std::vector<ElementRun>& runs,
                          int64_t first, uint32_t step, uint32_t stream) {
  if (!rounded.is_cpu() || rounded.scalar_type() != at::kBFloat16 || exact.scalar_type() != at::kFloat) {
    throw std::invalid_argument("stochastic rounding takes fp32 to bf16 on the CPU, not " +
                                std::string(c10::toString(exact.scalar_type())) + " to " +
                                c10::toString(rounded.scalar_type()) + " on " + rounded.device().str());
  }
  auto* to = rounded.data_ptr<c10::BFloat16>();
  const float* from = exact.const_data_ptr<float>();
  const int64_t last = first + rounded.numel();
  auto run = std::partition_point(runs.begin(), runs.end(),
                                  [&](const ElementRun& each) { return each.offset + each.numel <= first; });
  for (; run != runs.end() && run->offset < last; ++run) {
    const int64_t begin = std::max<int64_t>(first - run->offset, 0), end = std::min(last - run->offset, run->numel);
    const int64_t shift = run->offset - first;  // of the run's first element, perhaps before this piece
    at::parallel_for(begin, end, 1 << 13,
                     [&](int64_t b, int64_t e) { round_run(to + shift, from + shift, *run, b, e, step, stream); });
  }
}

std::vector<ElementRun> StochasticRounding::runs(const FlatBuffer& buffer, Range range) const {
  std::vector<ElementRun> all;
  const int64_t begin = buffer.shard().offset + range.offset, end = begin + range.numel;
  for (const Segment& segment : buffer.segments()) {
    const int64_t from = std::max(begin, segment.offset), to = std::min(end, segment.offset + segment.numel);
    if (from >= to) continue;
    add_runs(*segment.parameter, from - segment.offset, to - segment.offset, from - begin,
             philox_key(seed_, segment.parameter->name), all);
  }
  return all;
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
                               const std::vector<ElementRun>& runs, int64_t step, const Update& update) const {
  update_in_fp32(
      tensors, gradients, update, [&](size_t i, const at::Tensor& to, const at::Tensor& exact, int64_t first) {
        if (to.scalar_type() == at::kFloat) {
          to.copy_(exact);
        } else {
          round_stochastically(to, exact, runs, first, static_cast<uint32_t>(step), static_cast<uint32_t>(i));
        }
      });
}

void apply_update(const std::optional<StochasticRounding>& rounding, const std::vector<at::Tensor>& tensors,
                  const at::Tensor& gradients, const std::vector<ElementRun>& runs, int64_t step,
                  const StochasticRounding::Update& update) {
  const at::ScalarType dtype = tensors.front().scalar_type();
  const bool mixed = std::any_of(tensors.begin(), tensors.end(),
                                 [&](const at::Tensor& tensor) { return tensor.scalar_type() != dtype; });
  if (rounding) {
    rounding->apply(tensors, gradients, runs, step, update);
  } else if (mixed) {
    update_in_fp32(tensors, gradients, update,
                   [](size_t, const at::Tensor& to, const at::Tensor& exact, int64_t) { to.copy_(exact); });
  } else {
    update(tensors, gradients);
  }
}

}  // namespace meshtrain

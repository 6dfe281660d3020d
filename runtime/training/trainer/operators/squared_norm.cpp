#include "runtime/training/trainer/operators/squared_norm.h"

#include <torch/library.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/operator.h"
#include "runtime/training/trainer/operators/squared_norm_host.h"

namespace meshtrain {
namespace {

/// The elements whose squares are summed before the sums are: results depend on no number of threads.
constexpr int64_t kElementsOfSum = int64_t{1} << 16;

template <class Set, class T>
double sum_in_loops(const at::Tensor& elements) {
  const T* const first = elements.const_data_ptr<T>();
  const int64_t count = elements.numel();
  std::vector<double> sums(static_cast<size_t>((count + kElementsOfSum - 1) / kElementsOfSum));
  for_row_ranges(std::ssize(sums), kElementsOfSum, [&](int64_t begin, int64_t parts) {
    for (int64_t part = begin; part < begin + parts; ++part) {
      const int64_t offset = part * kElementsOfSum;
      sums[static_cast<size_t>(part)] =
          squared_norm_host::sum_of_squares<Set>(first + offset, std::min(kElementsOfSum, count - offset));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

at::Tensor square_of_norm(const at::Tensor& elements) {
  if (has_lanes(elements.scalar_type()) && elements.is_contiguous()) {
    const at::Tensor square = at::empty({}, elements.options().dtype(at::kDouble));
    if (elements.is_meta()) return square;
    return square.fill_(with_lanes(elements.scalar_type(), [&]<class Set>(Set) {
      return elements.scalar_type() == at::kFloat ? sum_in_loops<Set, float>(elements)
                                                  : sum_in_loops<Set, c10::BFloat16>(elements);
    }));
  }
  return at::linalg_vector_norm(elements, 2, at::OptionalIntArrayRef{}, false, at::kDouble).square_();
}

at::Tensor square_on_gpu(const at::Tensor& elements) {
  const at::Tensor from = elements.contiguous();
  return at::empty({}, elements.options().dtype(at::kDouble));
}

}  // namespace

at::Tensor squared_norm(const at::Tensor& elements) {
  static const Operator<at::Tensor(const at::Tensor&)> norm("meshtrain::squared_norm");
  return norm(elements);
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&square_of_norm, &square_on_gpu>(library, "squared_norm(Tensor elements) -> Tensor");
}

}  // namespace meshtrain

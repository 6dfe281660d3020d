#include "tensor_parallel/operators/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>

#include "mesh/device/aten.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/operator.h"
#include "tensor_parallel/operators/dropout_bits.h"

namespace meshtrain {
namespace {

/// `Wide`: the type in which elements of T are multiplied.
template <class T, class Wide>
void drop_row(T* to, const T* from, int64_t size, int64_t token, int64_t first, uint64_t key, uint32_t threshold,
              Wide scale) {
  for (int64_t i = 0; i < size;) {
    const int64_t feature = first + i, group = feature / kFeaturesOfCounter, begin = feature % kFeaturesOfCounter;
    const Counter bits = dropout_bits(token, group, key);
    const int64_t count = std::min(kFeaturesOfCounter - begin, size - i);
    for (int64_t j = 0; j < count; ++j) {
      to[i + j] = bits[static_cast<size_t>(begin + j)] < threshold
                      ? T(0)
                      : static_cast<T>(static_cast<Wide>(from[i + j]) * scale);
    }
    i += count;
  }
}

at::Tensor drop_on_host(const at::Tensor& x, const at::Tensor& tokens, int64_t first, double probability, int64_t key) {
  const at::Tensor from = x.contiguous();
  at::Tensor to = at::empty(from.sizes(), from.options());
  if (x.is_meta()) return to;
  const int64_t size = from.size(1);
  const auto* token = tokens.const_data_ptr<int64_t>();
  const uint32_t threshold = dropout_threshold(probability);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, from.scalar_type(), "dropout", [&] {
    const auto* in = from.const_data_ptr<scalar_t>();
    auto* out = to.data_ptr<scalar_t>();
    for_row_ranges(from.size(0), size, [&](int64_t begin, int64_t count) {
      for (int64_t row = begin; row < begin + count; ++row) {
        drop_row(out + row * size, in + row * size, size, token[row], first, std::bit_cast<uint64_t>(key), threshold,
                 static_cast<at::opmath_type<scalar_t>>(1 / (1 - probability)));
      }
    });
  });
  return to;
}

at::Tensor drop_on_gpu(const at::Tensor& x, const at::Tensor&, int64_t, double, int64_t) {
  return at::empty_like(x.contiguous());
}

}  // namespace

at::Tensor drop(const at::Tensor& x, const at::Tensor& tokens, int64_t first_feature, const Dropout& dropout) {
  static const Operator<decltype(drop_on_host)> call("meshtrain::dropout");
  return call(x, tokens, first_feature, dropout.probability, std::bit_cast<int64_t>(dropout.key));
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&drop_on_host, &drop_on_gpu>(
      library, "dropout(Tensor x, Tensor tokens, int first_feature, float probability, int key) -> Tensor");
}

}  // namespace meshtrain

#include "tensor_parallel/operators/embedding_gradient.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/operator.h"
#include "mesh/device/row_chunks.h"

namespace meshtrain {
namespace {

/// Adds the fp32 sum of a row's tokens, which are adjacent in `sorted`, once to each row of halves.
template <class Half>
void add_segments(const at::Tensor& into, const at::Tensor& sorted, const at::Tensor& order, const at::Tensor& dy) {
  const int64_t tokens = sorted.numel(), rows = into.size(0), size = into.size(1);
  const int64_t *id = sorted.const_data_ptr<int64_t>(), *token = order.const_data_ptr<int64_t>();
  const Half* from = dy.const_data_ptr<Half>();
  Half* to = into.data_ptr<Half>();
  at::parallel_for(0, size, std::max<int64_t>(1, kHostGrain / tokens), [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(end - begin));
    for (int64_t t = 0; t < tokens && id[t] < rows;) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      const int64_t row = id[t];
      for (; t < tokens && id[t] == row; ++t) {
        const Half* values = from + token[t] * size + begin;
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(values[i]);
      }
      Half* sums = to + row * size + begin;
      for (size_t i = 0; i < sum.size(); ++i) sums[i] = static_cast<Half>(static_cast<float>(sums[i]) + sum[i]);
    }
  });
}

void add_to_halves(const at::Tensor& into, const at::Tensor& local, const std::optional<at::Tensor>& absent,
                   const at::Tensor& dy) {
  const at::Tensor keys = absent ? local.masked_fill(*absent, into.size(0)) : local;  // absent ones come last
  const auto [sorted, order] = at::sort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor rows = dy.contiguous();
  if (into.is_meta() || sorted.numel() == 0) return;
  AT_DISPATCH_REDUCED_FLOATING_TYPES(into.scalar_type(), "embedding_gradient_",
                                     [&] { add_segments<scalar_t>(into, sorted, order, rows); });
}

void add_gradient(at::Tensor& into, const at::Tensor& local, const std::optional<at::Tensor>& absent,
                  const at::Tensor& dy) {
  TORCH_CHECK(into.is_contiguous() && into.dim() == 2 && dy.size(1) == into.size(1),
              "embedding_gradient_: ", dy.sizes(), " into ", into.sizes(), ", which must be contiguous");
  if (into.size(0) == 0) return;  // a rank may have no ids
  if (c10::isReducedFloatingType(into.scalar_type())) return add_to_halves(into, local, absent, dy);
  const int64_t row_bytes = dy.size(1) * static_cast<int64_t>(into.element_size());
  for_row_chunks(dy.size(0), row_bytes, [&](int64_t first, int64_t count) {
    at::Tensor rows = dy.narrow(0, first, count).to(into.scalar_type());
    if (absent) rows = rows.masked_fill(absent->narrow(0, first, count).unsqueeze(1), 0);
    into.index_add_(0, local.narrow(0, first, count), rows);
  });
}

// What the kernel for CUDA makes.
void add_on_gpu(at::Tensor& into, const at::Tensor& local, const std::optional<at::Tensor>& absent,
                const at::Tensor& dy) {
  const at::Tensor keys = (absent ? local.masked_fill(*absent, into.size(0)) : local).to(at::kInt);
  const auto [sorted, order] = at::sort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor from = dy.contiguous();
}

}  // namespace

void add_embedding_gradient(const at::Tensor& into, const ShardIds& ids, const at::Tensor& dy) {
  static const Operator<decltype(add_gradient)> add("meshtrain::embedding_gradient_");
  at::Tensor to = into;
  add(to, ids.local, ids.absent.defined() ? std::optional(ids.absent) : std::nullopt, dy);
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&add_gradient, &add_on_gpu>(
      library, "embedding_gradient_(Tensor(a!) into, Tensor ids, Tensor? absent, Tensor grad) -> ()");
}

}  // namespace meshtrain

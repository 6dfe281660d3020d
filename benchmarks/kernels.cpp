// GB/s of each CUDA kernel of the plug-in, bytes that it has to read and write counted once, beside a copy on the
// device; and attention in TFLOP/s. Shapes are SmolLM2-1.7B's. Needs a GPU.
//
//   tools/build release kernels_benchmark && build/release/benchmarks/kernels_benchmark [--quick]
//
// --quick calls the same kernels on small shapes, once each: a test that each still can be called. Its rates mean
// nothing.

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "context_parallel/attention_choice.h"
#include "context_parallel/attention_kernels.h"
#include "context_parallel/merge.h"
#include "context_parallel/packed_attention.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "mesh/device/cuda/plugin.h"
#include "mesh/device/error_message.h"
#include "mesh/device/operator.h"
#include "runtime/training/trainer/operators/squared_norm.h"
#include "tensor_parallel/linear_cross_entropy.h"
#include "tensor_parallel/operators/cross_entropy_rows.h"
#include "tensor_parallel/operators/embedding_gradient.h"

namespace meshtrain {
namespace {

struct Heads {
  int64_t query, kv, dim;
};

struct Sizes {
  int warm_up = 5, repetitions = 30;
  int64_t copied = 1 << 28;  // elements
  int64_t tokens = 16384, hidden = 2048, features = 8192, vocabulary = 49152, chunk_tokens = kCudaChunkTokens;
  int64_t sequences = 16, sequence = 4096, heads = 32;
  int64_t parameters = 1 << 27;
  int64_t attention_tokens = 32768;
  std::vector<Heads> attention_heads = {{32, 32, 64}, {32, 8, 64}, {32, 8, 128}};
  std::vector<int64_t> attention_lengths = {256, 1024, 4096, 8192}, document_lengths = {128, 1024, 4096};
};

Sizes quick() {
  return {.warm_up = 0,
          .repetitions = 1,
          .copied = 1 << 12,
          .tokens = 64,
          .hidden = 64,
          .features = 64,
          .vocabulary = 128,
          .chunk_tokens = 64,
          .sequences = 2,
          .sequence = 32,
          .heads = 2,
          .parameters = 1 << 12,
          .attention_tokens = 512,  // of as many queries cuDNN computes attention
          .attention_heads = {{2, 2, 64}, {2, 1, 64}, {2, 1, 128}},
          .attention_lengths = {64, 512},
          .document_lengths = {64}};
}

Sizes sizes;

constexpr double kEnoughSeconds = 1;

/// Returns the median time, after a few calls that warm up. A slow action is measured three times at least, and until
/// its times add up to kEnoughSeconds.
double seconds(const std::function<void()>& action) {
  const c10::impl::VirtualGuardImpl device(at::kCUDA);
  const c10::Stream stream = device.getStream(c10::Device(at::kCUDA, 0));
  std::vector<double> all;
  double sum = 0;
  for (int i = -sizes.warm_up; i < sizes.repetitions && (sum < kEnoughSeconds || i < 3); ++i) {
    c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    begin.record(stream);
    action();
    end.record(stream);
    end.synchronize();
    const double time = begin.elapsedTime(end) / 1e3;
    sum += time;
    if (i >= 0) all.push_back(time);
  }
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

at::Tensor made(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).to(dtype);
}

double bytes_of(const std::vector<at::Tensor>& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

class Table {
 public:
  Table() {
    const at::Tensor from = made({sizes.copied}, at::kFloat), to = at::empty_like(from);
    copy_ = 2 * bytes_of({from}) / seconds([&] { at::Tensor(to).copy_(from); }) / 1e9;
    std::printf(
        "copy on the device: %.0f GB/s\n\n| kernel | dtype | us | GB/s | of the copy |\n|---|---|---|---|---|\n",
        copy_);
  }

  void add(const char* kernel, at::ScalarType dtype, double bytes, const std::function<void()>& action) const {
    const double time = seconds(action), speed = bytes / time / 1e9;
    std::printf("| %s | %s | %.1f | %.0f | %.0f %% |\n", kernel, c10::toString(dtype), time * 1e6, speed,
                100 * speed / copy_);
    std::fflush(stdout);
  }

 private:
  double copy_ = 0;
};

void model(const Table& table, at::ScalarType dtype) {
  using at::Tensor;
  const int64_t tokens = sizes.tokens, hidden = sizes.hidden, features = sizes.features;
  {
    static const Operator<Tensor(const Tensor&, int64_t)> forward("meshtrain::glu");
    static const Operator<Tensor(const Tensor&, const Tensor&, int64_t)> backward("meshtrain::glu_backward");
    const Tensor x = made({tokens, 2 * features}, dtype), grad = made({tokens, features}, dtype);
    table.add("swiglu", dtype, bytes_of({x, grad}), [&] { forward(x, 0); });
    table.add("swiglu backward", dtype, bytes_of({x, x, grad}), [&] { backward(grad, x, 0); });
  }
  {
    static const Operator<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, double, int64_t)> forward(
        "meshtrain::rms_norm");
    static const Operator<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double,
                                                             int64_t)>
        of_sum("meshtrain::rms_norm_of_sum");
    static const Operator<std::tuple<Tensor, Tensor>(const Tensor&, const std::optional<Tensor>&, const Tensor&,
                                                     const Tensor&, const Tensor&, int64_t, bool, bool,
                                                     const std::optional<Tensor>&)>
        backward("meshtrain::rms_norm_backward");
    const Tensor x = made({4 * tokens, hidden}, dtype), residual = made({4 * tokens, hidden}, dtype);
    const Tensor grad = made({4 * tokens, hidden}, dtype), weight = made({hidden}, dtype);
    const Tensor rstd = std::get<1>(forward(x, weight, 1e-5, 0)), buffer = at::zeros({hidden}, rstd.options());
    table.add("rms_norm", dtype, bytes_of({x, x, rstd}), [&] { forward(x, weight, 1e-5, 0); });
    table.add("rms_norm of a sum", dtype, bytes_of({x, x, x, x, rstd}), [&] { of_sum(x, residual, weight, 1e-5, 0); });
    table.add("rms_norm backward", dtype, bytes_of({x, x, x, rstd}),
              [&] { backward(grad, std::nullopt, x, weight, rstd, 0, true, true, buffer); });
    table.add("rms_norm backward of a sum", dtype, bytes_of({x, x, x, x, rstd}),
              [&] { backward(grad, residual, x, weight, rstd, 0, true, true, buffer); });
  }
  {
    static const Operator<void(const Tensor&, const Tensor&, const Tensor&, bool, Tensor&)> rotate("meshtrain::rotate");
    const Tensor angle = made({sizes.sequence, 1, 32}, at::kFloat), cos = angle.cos().to(dtype),
                 sin = angle.sin().to(dtype);
    const Tensor qkv = made({sizes.sequences, sizes.sequence, 3 * sizes.heads, 64}, dtype);
    Tensor turned = qkv.narrow(2, 0, 2 * sizes.heads);
    table.add("rope of q and k in place", dtype, 2 * bytes_of({turned}),
              [&] { rotate(turned, cos, sin, false, turned); });
  }
  {
    const int64_t vocabulary = sizes.vocabulary, chunk = sizes.chunk_tokens;  // their logits are larger than the cache
    const at::TensorOptions options(at::kCUDA);
    const Tensor logits = made({chunk, vocabulary}, dtype);
    const Tensor no = at::zeros({chunk}, options.dtype(at::kBool));
    const RowLabels labels{at::randint(vocabulary, {chunk}, options.dtype(at::kLong)), no, no};
    const Tensor statistics = row_statistics(logits, labels), upstream = at::ones({}, statistics.options());
    table.add("cross-entropy, statistics", dtype, bytes_of({logits}), [&] { row_statistics(logits, labels); });
    table.add("cross-entropy, gradients", dtype, 2 * bytes_of({logits}),
              [&] { row_gradients(logits, statistics[0], statistics[0], statistics[1], labels, upstream); });

    const Tensor grad = made({tokens, hidden}, dtype), into = made({vocabulary, hidden}, dtype);
    const Tensor ids = at::randint(vocabulary, {tokens}, options.dtype(at::kLong));
    table.add("gradient of the embedding", dtype, 3 * bytes_of({grad}),  // nearly each token has a row of its own
              [&] {
                add_embedding_gradient(into, {ids, {}}, grad);
              });
    table.add("the same, one token", dtype, bytes_of({grad}), [&] {
      add_embedding_gradient(into, {at::zeros_like(ids), {}}, grad);
    });
  }
  {
    const int64_t batch = std::max<int64_t>(1, sizes.sequences / 4), length = 2 * sizes.sequence, heads = sizes.heads;
    const AttentionResult merged{made({batch, length, heads, 64}, at::kFloat).transpose(1, 2),
                                 made({batch, length, heads}, at::kFloat).transpose(1, 2)};
    const AttentionResult part{made({batch, length, heads, 64}, dtype).transpose(1, 2),
                               made({batch, heads, length}, at::kFloat)};
    table.add("merge of attention", dtype,
              bytes_of({merged.out, merged.out, merged.lse, merged.lse, part.out, part.lse}),
              [&] { merge(merged, part); });
  }
}

void optimizer(const Table& table, at::ScalarType dtype, at::ScalarType gradients_dtype, bool rounds) {
  using at::Tensor;
  static const Operator<void(Tensor&, Tensor&, Tensor&, Tensor&, const std::optional<Tensor>&, const Tensor&,
                             const Tensor&, const std::optional<Tensor>&, const std::optional<Tensor>&, double, double,
                             double, double, double)>
      adamw("meshtrain::adamw_");
  const int64_t elements = sizes.parameters;
  Tensor values = made({elements}, dtype), first = made({elements}, dtype), second = made({elements}, dtype).abs_();
  Tensor gradients = made({elements}, gradients_dtype);
  const at::TensorOptions options(at::kCUDA);
  std::optional<Tensor> rounded;
  if (rounds) rounded = at::empty({elements}, options.dtype(at::kBFloat16));
  const Tensor rate = at::full({}, 1e-5, options.dtype(at::kDouble)), step = at::ones({}, options.dtype(at::kFloat));
  const std::optional<Tensor> factor = at::full({}, 0.5, options.dtype(at::kDouble));
  const std::optional<Tensor> skip = at::zeros({}, options.dtype(at::kBool));
  const double bytes =
      2 * bytes_of({values, first, second}) + bytes_of({gradients}) + (rounds ? bytes_of({*rounded}) : 0);
  table.add(rounds ? "adamw, rounded to bf16 too" : "adamw", dtype, bytes, [&] {
    adamw(values, first, second, gradients, rounded, rate, step, factor, skip, 1, 0.9, 0.999, 0.1, 1e-8);
  });
  table.add("squared norm", gradients_dtype, bytes_of({gradients}), [&] { squared_norm(gradients); });
}

void attention() {
  std::printf("\n| attention, causal | dtype | forward TFLOP/s | backward TFLOP/s |\n|---|---|---|---|\n");
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto& [heads, kv_heads, head_dim] : sizes.attention_heads) {
      for (const int64_t length : sizes.attention_lengths) {
        const int64_t batch = sizes.attention_tokens / length, queries = length, dim = head_dim, query_heads = heads;
        const auto of = [&](int64_t count) { return made({batch, queries, count, dim}, dtype).transpose(1, 2); };
        const at::Tensor q = of(heads), k = of(kv_heads), v = of(kv_heads), grad = of(heads);
        const double scale = 1 / std::sqrt(static_cast<double>(dim));
        const double operations = 2.0 * static_cast<double>(batch * query_heads * queries * queries * dim);
        const AttentionResult attended = attend(q, k, v, Pairs::Causal, {scale});
        const double forward = seconds([&] { attend(q, k, v, Pairs::Causal, {scale}); });
        const double backward = seconds([&] { attend_backward(grad, q, k, v, attended, Pairs::Causal, {scale}); });
        std::printf("| %s %ld x %ld, heads %ld / %ld of %ld | %s | %.0f | %.0f |\n",
                    name(choose_attention({dtype, heads, kv_heads, dim, length, length, true},
                                          open_cuda_plugin().architecture(q.get_device()))),
                    batch, length, heads, kv_heads, dim, c10::toString(dtype), operations / forward / 1e12,
                    2.5 * operations / backward / 1e12);
        std::fflush(stdout);
      }
    }
  }
}

/// Documents of a sample of as many tokens as attention is measured with.
struct Documents {
  std::string what;
  std::vector<int64_t> lengths;
};

std::vector<Documents> packings() {
  const int64_t tokens = sizes.attention_tokens;
  std::vector<Documents> all;
  for (const int64_t length : sizes.document_lengths) {
    all.push_back({"of " + std::to_string(length), std::vector(static_cast<size_t>(tokens / length), length)});
  }
  std::vector<int64_t> mixed;  // from 16 of 32,768 tokens to 8,192, most of them short
  for (int64_t left = tokens, i = 0; left > 0; left -= mixed.back(), ++i) {
    mixed.push_back(std::min(left, std::max<int64_t>(1, (tokens / 4) >> (7 * i % 10))));
  }
  all.push_back({"mixed", mixed});
  return all;
}

/// Documents in one variable-length call; only pairs that count are counted.
void packed_attention() {
  std::printf("\n| packed documents | dtype | forward TFLOP/s | backward TFLOP/s |\n|---|---|---|---|\n");
  for (const auto& [heads, kv_heads, head_dim] : sizes.attention_heads) {
    for (const Documents& documents : packings()) {
      std::vector<int> ends = {0};
      double pairs = 0;
      for (const int64_t length : documents.lengths) {
        ends.push_back(ends.back() + static_cast<int>(length));
        pairs += static_cast<double>(length * length) / 2;
      }
      const int64_t tokens = ends.back(), longest = std::ranges::max(documents.lengths), dim = head_dim;
      const at::Tensor bounds = at::tensor(ends, at::kInt).to(at::kCUDA);
      const PackedLengths lengths{bounds, bounds, longest, longest};
      const auto of = [&](int64_t count) { return made({tokens, count, dim}, at::kBFloat16); };
      const at::Tensor q = of(heads), k = of(kv_heads), v = of(kv_heads), grad = of(heads);
      const double scale = 1 / std::sqrt(static_cast<double>(dim));
      const double operations = 4 * pairs * static_cast<double>(heads * dim);
      const AttentionResult attended = attend_packed(q, k, v, lengths, true, {scale});
      const double forward = seconds([&] { attend_packed(q, k, v, lengths, true, {scale}); });
      const double backward = seconds([&] { attend_packed_backward(grad, q, k, v, attended, lengths, true, {scale}); });
      std::printf("| %zu documents, %s, heads %ld / %ld of %ld | BFloat16 | %.0f | %.0f |\n", documents.lengths.size(),
                  documents.what.c_str(), heads, kv_heads, dim, operations / forward / 1e12,
                  2.5 * operations / backward / 1e12);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace meshtrain

int main(int count, char** arguments) {
  using namespace meshtrain;
  if (count > 1) {
    if (count > 2 || std::string_view(arguments[1]) != "--quick") {
      std::printf("kernels_benchmark: %s is not known: kernels_benchmark [--quick]\n", arguments[count - 1]);
      return 2;
    }
    sizes = quick();
  }
  const at::NoGradGuard no_grad;
  try {
    const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
    CudaPlugin& plugin = open_cuda_plugin(folder);
    plugin.prepare();
    plugin.use(0);
    std::printf("%s\n", plugin.describe(0).c_str());
  } catch (const InputError& error) {
    std::printf("kernels_benchmark: nothing is measured: %s\n", error.what());
    return 2;
  }
  try {
    const Table table;
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) model(table, dtype);
    optimizer(table, at::kFloat, at::kFloat, false);
    optimizer(table, at::kFloat, at::kFloat, true);
    optimizer(table, at::kBFloat16, at::kBFloat16, false);
    attention();
    packed_attention();
  } catch (const std::exception& error) {
    std::printf("kernels_benchmark: Error: %s\n", message_of(error).c_str());
    return 1;
  }
}

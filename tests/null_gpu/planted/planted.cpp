// Makes calls with the fault NAME, which the null GPU must notice: null_gpu_planted NAME. "none" makes the same calls
// without a fault.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>

#include "mesh/device/aten.h"
#include "mesh/device/cuda/plugin.h"
#include "mesh/device/operator.h"
#include "runtime/training/trainer/operators/squared_norm.h"
#include "tests/null_gpu/planted/copy.h"

namespace meshtrain {
namespace {

at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::zeros(sizes, at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(dtype));
}

/// Returns zeros at an address `bytes` after a multiple of 16.
at::Tensor at_offset(at::IntArrayRef sizes, at::ScalarType dtype, int64_t bytes) {
  const at::Tensor memory = zeros({c10::multiply_integers(sizes) * 8 + bytes}, at::kByte);
  return at::from_blob(
      static_cast<char*>(memory.data_ptr()) + bytes, sizes, [memory](void*) {}, memory.options().dtype(dtype),
      memory.device());
}

void attend(int64_t bytes) {
  const auto part = [&] { return at_offset({1, 2, 1024, 64}, at::kBFloat16, bytes); };
  at::_scaled_dot_product_cudnn_attention(part(), part(), part(), std::nullopt, /*compute_log_sumexp=*/true, 0.0, true);
}

void record(bool waits) {
  const at::Tensor x = zeros({64}, at::kFloat);
  at::Tensor sum = x.sum();
  sum.item<float>();  // allocates the pinned memory that it needs
  const auto graph = open_cuda_plugin().make_graph(0);
  graph->record([&] {
    sum = x.sum();
    if (waits) sum.item<float>();
  });
  graph->replay();
}

void call_of_squares(bool with_another) {
  const at::Tensor x = zeros({64}, at::kFloat);
  if (with_another) {
    static const Operator<at::Tensor(const at::Tensor&, const at::Tensor&)> squares("meshtrain::squared_norm");
    squares(x, x);
  } else {
    squared_norm(x);
  }
}

void multiply(int64_t bytes) {
  at::mm(at_offset({64, 64}, at::kFloat, bytes), at_offset({64, 64}, at::kFloat, 0));
}

void normalise(int64_t bytes) {
  squared_norm(at_offset({64}, at::kFloat, bytes));
}

void copy(int64_t bytes, const cuda::CopyLaunch& sizes) {
  const at::Tensor from = at_offset({1024}, at::kFloat, bytes), to = at_offset({1024}, at::kFloat, 0);
  cuda::copy_words(from.const_data_ptr<float>(), to.mutable_data_ptr<float>(), sizes);
}

struct Fault {
  const char* name;
  void (*call)(bool planted);
};

constexpr Fault kFaults[] = {
    {"argument", &call_of_squares},
    {"capture", &record},
    {"kernel_pointer", [](bool planted) { normalise(planted ? 2 : 0); }},
    {"product_pointer", [](bool planted) { multiply(planted ? 2 : 0); }},
    {"cudnn_pointer", [](bool planted) { attend(planted ? 2 : 0); }},
    {"words", [](bool planted) { copy(planted ? 4 : 0, {}); }},
    {"grid", [](bool planted) { copy(0, {.blocks_in_y = planted ? 65536u : 65535u}); }},
    {"block", [](bool planted) { copy(0, {.threads = planted ? 129u : 128u}); }},
    {"shared_memory", [](bool planted) { copy(0, {.shared_bytes = planted ? 49153u : 49152u}); }},
};

}  // namespace
}  // namespace meshtrain

int main(int count, char** arguments) {
  using namespace meshtrain;
  if (count != 2) {
    std::fprintf(stderr, "null_gpu_planted: one argument is needed: none, or the name of a fault\n");
    return 2;
  }
  const at::NoGradGuard no_grad;
  try {
    const auto build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
    CudaPlugin& plugin = open_cuda_plugin(build);
    plugin.prepare();
    plugin.use(0);
    for (const Fault& fault : kFaults) fault.call(std::strcmp(fault.name, arguments[1]) == 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "null_gpu_planted: %s\n", error.what());
    return 1;
  }
  return 0;
}

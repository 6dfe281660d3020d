// Measures what a step sets to zero, and its time, when layers write their gradients first and when every buffer is set
// to zero and all add to it: one trainer, the two in turn. Few tokens, so that gradients weigh against products.
//
//   tools/build release gradient_writes_benchmark && build/release/benchmarks/gradient_writes_benchmark

#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "mesh/device/aten.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain {
namespace {

constexpr int kRepetitions = 9;
constexpr double kMiB = 1 << 20;

int64_t zeroed_bytes = 0;

std::unique_ptr<at::ObserverContext> count_zeros(const at::RecordFunction& function) {
  if (std::string(function.name()) == "aten::zero_") {
    zeroed_bytes += static_cast<int64_t>(function.inputs()[0].toTensor().nbytes());
  }
  return nullptr;
}

Recipe recipe_of(const std::string& precision, int64_t num_tokens) {
  Recipe recipe;
  ModelShape& shape = recipe.model.shape;
  shape.hidden_size = 576;
  shape.intermediate_size = 1536;
  shape.num_hidden_layers = 8;
  shape.num_attention_heads = 9;
  shape.num_key_value_heads = 3;
  shape.head_dim = 64;
  shape.vocab_size = 49152;
  shape.tie_word_embeddings = true;
  recipe.parallel.fsdp.mode = "no_shard";
  recipe.train.sequence_length = num_tokens;
  recipe.train.precision = precision;
  return recipe;
}

void row(const DeviceMesh& mesh, const std::string& precision, int64_t num_tokens, int64_t num_micro_batches) {
  Recipe recipe = recipe_of(precision, num_tokens);
  recipe.train.global_batch = num_micro_batches;
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  std::vector<Parameter*> written;
  for (Parameter* parameter : trainer.model().parameters()) {
    if (parameter->written_by_layer) written.push_back(parameter);
  }
  const StepBatch batch = made_step(trainer.options(), trainer.layout(), num_micro_batches, at::kCPU);
  double bytes[2];
  std::vector<double> seconds[2];
  for (int i = 0; i <= kRepetitions; ++i) {  // the first counts, and warms up
    for (const bool writes : {false, true}) {
      for (Parameter* parameter : written) parameter->written_by_layer = writes;
      at::CallbackHandle handle{};
      zeroed_bytes = 0;
      if (i == 0) {
        handle = at::addThreadLocalCallback(
            at::RecordFunctionCallback(count_zeros).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
      }
      const auto start = std::chrono::steady_clock::now();
      trainer.compute_gradients(batch, batch.num_counted, {});
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (i > 0) {
        seconds[writes].push_back(taken.count());
      } else {
        at::removeCallback(handle);
        bytes[writes] = static_cast<double>(zeroed_bytes) / kMiB;
      }
    }
  }
  for (std::vector<double>& each : seconds) std::sort(each.begin(), each.end());
  const auto median = [&](bool writes) { return seconds[writes][kRepetitions / 2]; };
  std::printf("| %s | %d | %d | %.1f | %.3f | %.1f | %.3f | %.3f |\n", precision.c_str(), static_cast<int>(num_tokens),
              static_cast<int>(num_micro_batches), bytes[0], median(false), bytes[1], median(true),
              median(false) / median(true));
  std::fflush(stdout);
}

}  // namespace
}  // namespace meshtrain

int main() {
  at::set_num_threads(1);
  const meshtrain::DeviceMesh mesh(meshtrain::MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), meshtrain::Group());
  std::printf("| precision | tokens | micro-batches | zeros, MiB | s | zeros, MiB | s | ratio |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  for (const char* precision : {"fp32", "bf16", "bf16_mixed"}) {
    meshtrain::row(mesh, precision, 16, 1);
    meshtrain::row(mesh, precision, 256, 1);
  }
  meshtrain::row(mesh, "fp32", 16, 3);
}

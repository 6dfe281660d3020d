// Exports and imports process a model without holding all of it.

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "mesh/device/aten.h"
#include "runtime/program/convert/export_checkpoint.h"
#include "runtime/program/convert/import_checkpoint.h"
#include "runtime/training/model/transformer.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr double kMiB = 1 << 20;

/// Returns "VmHWM" or a similar value of this process, in MiB.
double memory(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) * 1024 / kMiB;
  }
  return 0;
}

/// Returns the peak memory, including mapped files, that `action` takes beyond the present memory, in MiB.
template <class Action>
double growth(const Action& action) {
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const double before = memory("VmRSS");
  action();
  return memory("VmHWM") - before;
}

struct Peak {
  double writing, reading, model;  // MiB
};

Peak convert(int64_t num_layers) {
  const testing::ScratchFolder scratch;
  const fs::path hf = scratch.path() / "hf", run = scratch.path() / "run", out = scratch.path() / "out";
  Recipe recipe;
  recipe.name = "deep";
  recipe.train.sequence_length = 16;
  recipe.train.global_batch = recipe.train.steps = 1;
  recipe.optimizer.learning_rate = 1;
  recipe.data.tokens = "/tokens.bin";
  ModelShape& shape = recipe.model.shape;
  shape.hidden_size = 384;
  shape.intermediate_size = 768;
  shape.num_hidden_layers = num_layers;
  shape.num_attention_heads = shape.num_key_value_heads = 8;
  shape.head_dim = 48;
  shape.vocab_size = 128;
  shape.max_position_embeddings = 16;
  double bytes = 0;
  {
    const std::vector<TensorEntry> tensors = declared_tensors(shape, at::kFloat);
    FolderWriter writer(hf, shape, {}, tensors, /*max_file_bytes=*/16 << 20);
    for (const TensorEntry& tensor : tensors) {
      writer.write(tensor.name, at::ones(tensor.shape));
      bytes += static_cast<double>(num_bytes(tensor));
    }
    writer.finish();
  }
  const double writing = growth([&] { import_checkpoint(hf, recipe, run); });
  const double reading =
      growth([&] { export_checkpoint(run / "checkpoints/step-00000000", out, {.dtype = at::kBFloat16}); });
  return {writing, reading, bytes / kMiB};
}

TEST(ConvertMemory, DoesNotGrowWithTheModel) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  if (memory("VmHWM") == 0 || !std::ofstream("/proc/self/clear_refs")) GTEST_SKIP() << "no /proc to measure with";
  convert(1);  // allocates what is made once
  const Peak shallow = convert(2), deep = convert(20);
  const double largest = 384 * 768 * 4 / kMiB;
  ASSERT_GT(deep.model - shallow.model, 80 * largest);
  const double mapped = 2;  // the system may map this much of a file around a byte read from the disk
  for (const auto& [few, many] : {std::pair(shallow.writing, deep.writing), {shallow.reading, deep.reading}}) {
    EXPECT_LT(many, 6 * largest + mapped) << "MiB of a model of " << deep.model;
    EXPECT_LT(many, few + 2 * largest + mapped) << "MiB of a model of " << deep.model;
  }
}

}  // namespace
}  // namespace meshtrain

// Generated text is the same on every tp mesh, and from a checkpoint of any mesh. Over dp: generate_rows_test.cpp.

#include "runtime/program/generate/continuation.h"

#include <gtest/gtest.h>

#include <fstream>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "runtime/program/generate/model_source.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/checkpoint/piece.h"
#include "runtime/training/model/initialize.h"
#include "runtime/training/safetensors/folder.h"
#include "tests/checkpoint/training.h"
#include "tests/matrix/cell.h"
#include "tests/runtime/program/generate/one_text.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/tensor_offset.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

DeviceMesh tp_mesh(const Group& ranks) {
  return DeviceMesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", ranks.size()}}), ranks);
}

/// Returns the tokens generated for two prompts, with `sampling`.
std::vector<std::vector<int64_t>> texts(LanguageModel& model, const SamplingOptions& sampling) {
  std::vector<std::vector<int64_t>> all;
  for (const std::vector<int64_t>& prompt : {std::vector<int64_t>{3}, {5, 4, 50, 9, 9, 1, 77}}) {
    all.push_back(one_text(model, prompt, all.size(), {64, {}, sampling, 3}).tokens);
  }
  return all;
}

Cell cell_of(const std::string& family, bool tied, const std::string& precision) {
  return {{family, tied, "gqa", "none", "one", precision, "adamw"}, 1, 1, 1, "none", "contiguous", false, 1};
}

TEST(GenerateOnMeshes, TokensAreThoseOfOneRank) {
  for (const auto& [family, tied] : {std::pair{"llama", false}, {"qwen3", true}, {"qwen2", false}}) {
    ModelShape shape = recipe_of(cell_of(family, tied, "fp64"), true, "").model.shape;
    shape.initializer_range = 0.4;  // the next token is then hard to guess
    const auto draw_weights = [](const Parameter& parameter) { initialize(parameter, 11); };
    const DeviceMesh all = tp_mesh(world()), alone = tp_mesh(Group());
    LanguageModel on_all(shape, all, {at::kDouble}, draw_weights), on_one(shape, alone, {at::kDouble}, draw_weights);
    for (const SamplingOptions& sampling :
         {SamplingOptions{}, {1, 0, 1, 5}, {0.8, 20, 0.9, 6}, {1.5, 0, 0.5, 7}, {1, 3, 1, 8}}) {
      const auto wanted = texts(on_one, sampling);
      EXPECT_EQ(texts(on_all, sampling), wanted) << family << " " << sampling.temperature;
      EXPECT_GT(std::set<int64_t>(wanted[0].begin(), wanted[0].end()).size(), 5u) << "says more than one thing";
    }
  }
}

TEST(GenerateOnMeshes, UnderRulesTokensAreThoseOfOneRank) {
  ModelShape shape = recipe_of(cell_of("llama", false, "fp64"), true, "").model.shape;
  shape.initializer_range = 0.4;
  const auto draw_weights = [](const Parameter& parameter) { initialize(parameter, 11); };
  const std::vector<int64_t> prompt = {5, 4, 50, 9, 9, 1, 77};
  const auto tokens = [&](const Group& ranks, const GenerateOptions& options) {
    const DeviceMesh mesh = tp_mesh(ranks);
    LanguageModel model(shape, mesh, {at::kDouble}, draw_weights);
    return one_text(model, prompt, 0, options).tokens;
  };
  GenerateOptions options{.max_tokens = 40};
  const std::vector<int64_t> free = tokens(Group(), options);
  options.rules = {1.3, 3, {{free[1]}, {free[4], free[5]}}, 0, 12};
  options.stop = {free[2]};
  for (const SamplingOptions& sampling : {SamplingOptions{}, {1.2, 30, 0.95, 6, 0.02}}) {
    options.sampling = sampling;
    const std::vector<int64_t> wanted = tokens(Group(), options);
    EXPECT_NE(wanted, free);
    EXPECT_GE(wanted.size(), 12u);
    EXPECT_EQ(tokens(world(), options), wanted) << sampling.temperature;
  }
}

TEST(GenerateOnMeshes, TheCacheHoldsTheHeadsOfARank) {
  const ModelShape shape = recipe_of(cell_of("llama", false, "fp32"), true, "").model.shape;
  const DeviceMesh mesh = tp_mesh(world());
  const LanguageModel model(shape, mesh, {}, [](const Parameter& parameter) { initialize(parameter, 11); });
  const int64_t full = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * 4;
  const HostMemory& memory = HostMemory::counted();
  const int64_t before = memory.live();
  const KeyValueCache cache = model.make_cache(10);
  EXPECT_EQ(memory.live() - before, 10 * full / world().size());
}

TEST(GenerateOnMeshes, ContextParallelIsRefused) {
  if (world().size() == 1) return;
  const ModelShape shape = recipe_of(cell_of("llama", false, "fp32"), true, "").model.shape;
  const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"cp", world().size()}, {"tp", 1}}), world());
  EXPECT_TRUE(has(message<InputError>([&] { LanguageModel(shape, mesh, {}, [](const Parameter&) {}); }),
                  "as in --mesh tp=" + std::to_string(world().size())));
}

/// A checkpoint written by a mesh of all ranks with shards, and its export.
class GenerateFromCheckpoint : public ::testing::Test {
 protected:
  GenerateFromCheckpoint() : scratch_(world()) {
    if (world().rank() == 0) write_tokens(scratch_.path());
    world().barrier();
    const int64_t n = world().size(), tp = n >= 2 ? 2 : 1, cp = n >= 8 ? 2 : 1, dp = n / tp / cp;
    Cell cell = cell_of("qwen3", true, "fp32");
    cell.dp = dp, cell.tp = tp, cell.cp = cp;
    cell.algorithm = cp > 1 ? "ring" : "none";
    cell.sharding = n == 1 ? "no_shard" : "full_shard";
    Recipe recipe = recipe_of(cell, n == 1, scratch_.path());
    recipe.model.shape.initializer_range = 0.4;
    Training training(recipe, world());
    training.run(2);
    training.save(run() / "checkpoints");
    training.export_to(exported());
    world().barrier();
  }

  fs::path run() const { return scratch_.path() / "run"; }
  fs::path exported() const { return scratch_.path() / "exported"; }

  static std::vector<std::vector<int64_t>> texts_of(const fs::path& path, const Group& ranks) {
    const ModelSource source = read_model_source(find_model(path));
    EXPECT_EQ(source.precision, "fp32");
    ModelWeights weights(source);
    const DeviceMesh mesh = tp_mesh(ranks);
    LanguageModel model(source.shape, mesh, {at::kDouble},
                        [&](const Parameter& parameter) { weights.read(parameter); });
    return texts(model, {});
  }

  /// Returns this rank's message for the checkpoint after rank 0 has flipped the first byte of a piece of `tensor`.
  std::string complaint_after_damage(const std::string& tensor) {
    const fs::path folder = find_model(run());
    if (world().rank() == 0) {
      const Manifest manifest = read_manifest(folder);
      const StoredPiece& piece = manifest.tensors.at(tensor).pieces.front();
      const fs::path file = folder / manifest.files[piece.file].name;
      std::ptrdiff_t offset = 0;
      {
        const SafetensorsFile opened(file);
        offset = testing::tensor_offset(opened, piece_name(tensor, piece.box));
      }
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(offset);
      const char byte = static_cast<char>(stream.get() ^ 1);
      stream.seekp(offset);
      stream.put(byte);
    }
    world().barrier();
    std::string message;
    try {
      texts_of(run(), Group());
    } catch (const InputError& error) {
      message = error.what();
    }
    world().barrier();
    return message;
  }

  ScratchFolder scratch_;
};

TEST_F(GenerateFromCheckpoint, SaysWhatItsExportSays) {
  const auto wanted = texts_of(exported(), Group());
  EXPECT_EQ(texts_of(run(), Group()), wanted);
  EXPECT_EQ(texts_of(run(), world()), wanted);
  EXPECT_EQ(texts_of(exported(), world()), wanted);
  EXPECT_EQ(texts_of(run() / "checkpoints", Group()), wanted);
  EXPECT_EQ(texts_of(newest(run() / "checkpoints"), Group()), wanted);
  EXPECT_FALSE(fs::exists(run() / "config.json"));
}

TEST_F(GenerateFromCheckpoint, ReadsWeightsAloneAndProvesThem) {
  EXPECT_EQ(complaint_after_damage("model.layers.1.mlp.up_proj.weight.exp_avg"), "") << "moments are not looked at";
  const std::string message = complaint_after_damage("model.layers.1.mlp.up_proj.weight");
  EXPECT_NE(message.find("model.layers.1.mlp.up_proj.weight["), std::string::npos) << message;
  EXPECT_NE(message.find("is damaged"), std::string::npos) << message;
}

}  // namespace
}  // namespace meshtrain::testing

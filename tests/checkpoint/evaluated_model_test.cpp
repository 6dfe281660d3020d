// A model to evaluate is cut over dp x cp and tp, whatever tp is.

#include "runtime/program/evaluate/evaluated_model.h"

#include <gtest/gtest.h>

#include "mesh/device/memory.h"
#include "runtime/program/generate/model_source.h"
#include "tests/support/files.h"
#include "tests/support/hosts.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

/// Returns the bytes that a rank holds of the fixture's model in full, of its shard, and of the units gathered at once.
struct Held {
  int64_t full = 0, shards = 0, two = 0, live = 0;
};

Held held(const MeshLayout& layout, const std::optional<fs::path>& offload, const fs::path& tokens) {
  const ModelSource source = read_model_source(find_model(source_folder() + "/tests/fixtures/llama"));
  EvaluationRequest request;
  request.options = {{"", "evaluate.tokens", tokens.string()}, {"", "train.sequence_length", "8"}};
  request.other_tokens = true;
  if (offload) request.offload = {"disk", *offload};
  const DeviceMesh mesh(layout, world_on(Hosts::Refused));  // without windows
  ModelWeights weights(source);
  const Decisions decisions = resolve(recipe_to_evaluate(source, request), layout);
  const int64_t before = HostMemory::counted().live();
  const ModelParts parts = evaluated_model(decisions, PipelineMesh(mesh), at::kCPU,
                                           [&](const Parameter& parameter) { weights.read(parameter); });
  Held found{.live = HostMemory::counted().live() - before};
  int64_t last = 0;
  for (const Unit& unit : parts.front()->groups().front().fsdp->units()) {
    int64_t bytes = 0;
    for (const FlatBuffer& buffer : unit.buffers()) {
      bytes += static_cast<int64_t>(buffer.values().nbytes());
      found.shards += static_cast<int64_t>(buffer.shard_values().nbytes());
    }
    found.full += bytes;
    found.two = std::max(found.two, last + bytes);
    last = bytes;
  }
  return found;
}

TEST(EvaluatedModel, ARankHoldsItsShardAndTwoUnits) {
  const ScratchFolder folder(world());
  const fs::path tokens = folder.path() / "tokens.bin";
  if (world().rank() == 0) write_ids<uint16_t>(tokens, std::vector<int64_t>(17, 1));
  world().barrier();
  const int64_t n = world().size();
  for (const int64_t tp : {1, 2}) {
    if (n % tp != 0) continue;
    const MeshLayout layout({{"dp", n / tp}, {"cp", 1}, {"tp", tp}});
    const Held in_memory = held(layout, std::nullopt, tokens), on_disk = held(layout, folder.path(), tokens);
    EXPECT_EQ(in_memory.shards, in_memory.full / (n / tp)) << layout.describe();
    // Besides weights, a part holds the rotations of a few positions.
    const int64_t others = on_disk.live - on_disk.two;
    EXPECT_GE(others, 0);
    EXPECT_LT(others, on_disk.full / 8);
    const int64_t weights = n / tp == 1 ? in_memory.full : in_memory.shards + in_memory.two;
    EXPECT_EQ(in_memory.live, weights + others) << layout.describe();
  }
}

}  // namespace
}  // namespace meshtrain::testing

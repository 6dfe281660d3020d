// The export of a mesh is the export of one rank: complete tensors, without padding.

#include "runtime/program/hf/export_model.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "mesh/device/aten.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/safetensors/folder.h"
#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

class Export : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

/// Expects that the model of `cell` on its mesh is exported as the model of one rank.
void expect_export_of_one_rank(const Cell& cell) {
  const ScratchFolder folder(world());
  const DeviceMesh mesh = mesh_of(cell), alone = one_rank_mesh();
  const Recipe recipe = recipe_of(cell, /*alone=*/false, folder.path());
  TransformerTrainer on_mesh(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  TransformerTrainer on_one_rank(resolve(recipe_of(cell, /*alone=*/true, folder.path()), alone.layout()), alone,
                                 at::kCPU);

  const std::filesystem::path exported = folder.path() / "exported";
  export_model(on_mesh.index(), on_mesh.groups(), recipe.model.shape, {}, mesh, exported);

  EXPECT_EQ(read_config_json(exported / "config.json").vocab_size, recipe.model.shape.vocab_size);
  const SafetensorsFolder weights(exported);
  std::set<std::string> names;
  for (const Parameter* parameter : on_one_rank.model().parameters()) {
    const std::vector<FolderTensor> parts = folder_parts(recipe.model.shape, parameter->name, parameter->global_shape);
    for (const FolderTensor& stored : parts) names.insert(stored.name);
    const at::Tensor values = at::empty_like(parameter->tensor.detach());
    read_parts(weights, parts, parameter->box, values);
    EXPECT_TRUE(at::equal(values, parameter->tensor.detach())) << parameter->name;
  }
  EXPECT_EQ(weights.names(), std::vector<std::string>(names.begin(), names.end()));
}

TEST_P(Export, IsTheModelOfOneRank) {
  const auto [family, tied] = GetParam();
  const int64_t size = world().size();
  Cell cell{{family, tied, "gqa", "none", "one", "fp32", "adamw"}, 1, size, 1, "none", "contiguous", false, 1};
  expect_export_of_one_rank(cell);
  cell.variant.layers = std::max<int64_t>(size, 2);
  std::swap(cell.tp, cell.pp);
  expect_export_of_one_rank(cell);
}

TEST_P(Export, IsReadBackByAnotherMesh) {
  const auto [family, tied] = GetParam();
  const ScratchFolder folder(world());
  const Cell cell{
      {family, tied, "gqa", "none", "one", "fp32", "adamw"}, world().size(), 1, 1, "none", "contiguous", false, 1};
  const DeviceMesh written(MeshLayout({{"dp", world().size()}, {"cp", 1}, {"tp", 1}}), world());
  const DeviceMesh read(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", world().size()}}), world());
  Recipe recipe = recipe_of(cell, /*alone=*/false, folder.path());
  TransformerTrainer first(resolve(recipe, written.layout()), written, at::kCPU);
  export_model(first.index(), first.groups(), recipe.model.shape, {}, written, folder.path() / "exported");

  recipe.model.hf = folder.path() / "exported";
  recipe.model.init = "pretrained";
  recipe.train.seed += 1;  // random weights must not influence the export
  TransformerTrainer second(resolve(recipe, read.layout()), read, at::kCPU);
  std::map<std::string, at::Tensor> wanted;
  for (const Parameter* parameter : first.model().parameters()) wanted[parameter->name] = parameter->tensor.detach();
  for (const Parameter* parameter : second.model().parameters()) {
    EXPECT_TRUE(at::equal(parameter->valid().detach(), part(wanted.at(parameter->name), parameter->box)))
        << parameter->name;
  }
}

/// Returns the tensors that a trainer of `recipe` on `mesh` exports to `folder`, by name.
std::map<std::string, at::Tensor> exported(const Recipe& recipe, const DeviceMesh& mesh,
                                           const std::filesystem::path& folder) {
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  export_model(trainer.index(), trainer.groups(), recipe.model.shape, {}, mesh, folder);
  mesh.world().barrier();
  const SafetensorsFolder weights(folder);
  std::map<std::string, at::Tensor> all;
  for (const std::string& name : weights.names()) all[name] = weights.read(name);
  return all;
}

TEST(ExportOfStages, HasTheAdaptersOfAllStages) {
  const ScratchFolder folder(world());
  for (const char* precision : {"fp32", "bf16_mixed"}) {
    Cell cell{{"llama", false, "gqa", "none", "one", precision, "adamw"}, 1, 1, 1, "none", "contiguous", false, 1};
    cell.variant.adapter = "all";
    cell.variant.layers = std::max<int64_t>(world().size(), 2);
    const std::filesystem::path own = folder.path() / (precision + std::to_string(world().rank()));
    const auto wanted = exported(recipe_of(cell, /*alone=*/true, folder.path()), one_rank_mesh(), own);
    cell.pp = world().size();
    const auto found =
        exported(recipe_of(cell, /*alone=*/false, folder.path()), mesh_of(cell), folder.path() / precision);
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Export,
                         ::testing::Combine(::testing::Values("llama", "qwen2", "qwen3", "phi3", "olmo2", "gemma3_text",
                                                              "mixtral", "qwen2_moe", "granitemoeshared", "glm4_moe",
                                                              "gpt_oss"),
                                            ::testing::Bool()));

}  // namespace
}  // namespace meshtrain::testing

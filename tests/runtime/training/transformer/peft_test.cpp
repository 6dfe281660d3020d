// One rank trains adapters as PEFT does: tests/fixtures/adapters, written by tests/fixtures/generate_adapters.py.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "mesh/device/aten.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/program/hf/peft_config.h"
#include "runtime/training/model/load.h"
#include "runtime/training/safetensors/folder.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/support/files.h"
#include "tests/support/small_model.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

fs::path fixture_folder() {
  return source_folder() + "/tests/fixtures";
}

/// Returns the adapters of a case of cases.json, under PEFT's keys.
AdapterShape adapter_in(const nlohmann::json& keys) {
  return {.rank = keys.at("r"),
          .alpha = keys.at("lora_alpha"),
          .use_rslora = keys.value("use_rslora", false),
          .targets = keys.at("target_modules"),
          .layers = keys.value("layers_to_transform", std::vector<int64_t>())};
}

TEST(PeftFolder, HasTheLossThatPeftComputes) {
  const nlohmann::json cases = nlohmann::json::parse(std::ifstream(fixture_folder() / "adapters/folders.json"));
  for (const char* name : {"llama", "phi3", "ends"}) {
    const fs::path folder = fixture_folder() / cases.at(name).at("model").get<std::string>();
    const SafetensorsFile batch_file(folder / "reference.safetensors");
    const at::Tensor inputs = batch_file.read("inputs"), labels = batch_file.read("labels").reshape(-1);
    TrainingOptions options;
    options.shape = read_config_json(folder / "config.json");
    options.weights = folder;
    const fs::path adapter = fixture_folder() / "adapters/folders" / name;
    options.shape.adapter = read_peft_folder(adapter, options.shape);
    options.shape.adapter.from = adapter;
    options.shape.adapter.dropout = 0;
    options.batch = {inputs.size(1), inputs.size(0), inputs.size(0)};
    options.precision = precision_in(at::kDouble);
    const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group());
    TransformerTrainer trainer(options, mesh, at::kCPU);
    const StepBatch batch{{{inputs.reshape(-1), labels}}, labels.ne(kIgnoredLabel).sum().item<int64_t>()};
    const double loss = cases.at(name).at("loss");
    EXPECT_NEAR(trainer.step(batch, batch.num_counted, {1e-3}).loss.item<double>(), loss, 1e-10 * loss) << name;
  }
}

/// Returns a factor as PEFT has it, in the shape of ours: A of the embedding is the transpose.
at::Tensor as_ours(const at::Tensor& values, const std::string& name) {
  return name.ends_with(".lora_embedding_A") ? values.t() : values;
}

class Peft : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Peft, TenStepsHaveItsLossesNormsAndWeights) {
  const auto& [name, precision] = GetParam();
  const nlohmann::json keys = nlohmann::json::parse(std::ifstream(fixture_folder() / "adapters/cases.json")).at(name);
  const fs::path folder = fixture_folder() / keys.at("model").get<std::string>();
  const SafetensorsFile batch_file(folder / "reference.safetensors");
  const SafetensorsFile reference(fixture_folder() / "adapters" / (std::string(name) + ".safetensors"));
  const bool is_exact = precision == std::string("fp64");
  const at::Tensor inputs = batch_file.read("inputs"), labels = batch_file.read("labels").reshape(-1);

  TrainingOptions options;
  options.shape = read_config_json(folder / "config.json");
  options.frozen_row = options.shape.pad_token_id;  // padding_idx of transformers
  options.shape.adapter = adapter_in(keys);
  options.weights = folder;
  options.batch = {inputs.size(1), inputs.size(0), inputs.size(0)};
  options.precision = precision_in(is_exact ? at::kDouble : at::kFloat);
  options.optimizer.weight_decay = 0.1;
  const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group());
  TransformerTrainer trainer(options, mesh, at::kCPU);
  const PretrainedWeights base(folder, options.shape);
  size_t num_adapters = 0;
  trainer.fsdp().write_values([&](const Parameter& parameter) {
    if (!is_adapter(parameter.name)) return base.read(parameter);
    parameter.tensor.detach().copy_(as_ours(reference.read("first." + parameter.name), parameter.name));
    ++num_adapters;
  });

  const double tolerance = is_exact ? 1e-10 : 1e-5;
  const StepBatch batch{{{inputs.reshape(-1), labels}}, labels.ne(kIgnoredLabel).sum().item<int64_t>()};
  const std::string prefix = std::string(precision) + ".";
  const at::Tensor losses = reference.read(prefix + "losses"), norms = reference.read(prefix + "grad_norms");
  for (int64_t step = 0; step < losses.size(0); ++step) {
    const StepOutcome outcome = trainer.step(batch, batch.num_counted, {1e-3});
    const double loss = losses[step].item<double>(), norm = norms[step].item<double>();
    EXPECT_NEAR(outcome.loss.item<double>(), loss, tolerance * loss) << "step " << step;
    EXPECT_NEAR(outcome.grad_norm.item<double>(), norm, tolerance * norm) << "step " << step;
  }
  EXPECT_EQ(3 * num_adapters + 4, reference.entries().size()) << "each factor is there first, and last twice";
  for (const Parameter* parameter : trainer.model().parameters()) {
    if (!is_adapter(parameter->name)) continue;
    const at::Tensor first = as_ours(reference.read("first." + parameter->name).to(at::kDouble), parameter->name);
    const at::Tensor last =
        as_ours(reference.read(prefix + "last." + parameter->name).to(at::kDouble), parameter->name);
    const at::Tensor difference = parameter->tensor.detach().to(at::kDouble) - last;
    EXPECT_LE(difference.abs().max().item<double>(), tolerance * last.abs().max().item<double>()) << parameter->name;
    EXPECT_GT((last - first).abs().max().item<double>(), 1e-3) << parameter->name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Peft,
    ::testing::Combine(::testing::Values("llama", "llama_tied", "qwen3", "phi3", "gemma2", "llama_ends",
                                         "llama_tied_embedding", "llama_padding_ends", "gemma3_ends", "granite_ends"),
                       ::testing::Values("fp64", "fp32")),
    [](const auto& test) { return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace meshtrain::testing

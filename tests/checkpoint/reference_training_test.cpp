// A training with a z-loss, steps that are skipped as outliers and a batch that grows is that of transformers with the
// rules written in Python (tests/fixtures/training, written by generate_training.py), on every mesh and across a
// resume.

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "mesh/device/aten.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/training/safetensors/folder.h"
#include "tests/checkpoint/training.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kFirstSteps = 9;  // before the resume: the record has an outlier, and the batch its second size

using Sizes = std::map<std::string, int64_t>;

/// Returns the meshes of all ranks: the training begins on one and continues on the next.
std::vector<Sizes> meshes_in_turn() {
  switch (world().size()) {
    case 1:
      return {{}};
    case 2:
      return {{{"tp", 2}}, {{"pp", 2}}, {{"cp", 2}}, {{"dp", 2}}};
    case 4:
      return {{{"tp", 2}, {"pp", 2}}, {{"dp", 2}, {"cp", 2}}};
    default:
      return {{{"dp", 2}, {"tp", 2}, {"cp", 2}}, {{"pp", 2}, {"dp", 2}, {"tp", 2}}};
  }
}

class ReferenceTraining : public ::testing::Test {
 protected:
  ReferenceTraining() : reference_(fixtures() / "training/reference.safetensors") {
    const at::Tensor tokens = reference_.read("tokens").to(at::kShort).contiguous();
    if (world().rank() == 0) {
      std::ofstream(folder_.path() / "tokens.bin", std::ios::binary)
          .write(static_cast<const char*>(tokens.const_data_ptr()), static_cast<std::streamsize>(tokens.nbytes()));
    }
    world().barrier();
  }

  static std::filesystem::path fixtures() { return source_folder() + "/tests/fixtures"; }

  Recipe recipe(const Sizes& mesh) const {
    Recipe recipe;
    recipe.name = "reference";
    recipe.model.hf = fixtures() / "llama_gqa_tied";
    recipe.model.init = "pretrained";
    recipe.model.shape = read_config_json(recipe.model.hf / "config.json");
    recipe.parallel.mesh = mesh;
    recipe.data.tokens = folder_.path() / "tokens.bin";
    recipe.data.ignore_id = 3;
    TrainRecipe& train = recipe.train;
    train.sequence_length = 16;
    train.phases = {{300, 4}, {600, 6}, {{}, 8}};
    train.global_batch = 8;
    train.precision = "fp64";
    train.z_loss = 0.05;
    train.skip_outliers = OutlierOptions{.window = 6, .sigma = 3};
    train.steps = reference_.read("sizes").numel();
    recipe.optimizer.learning_rate = 5e-2;
    recipe.optimizer.weight_decay = 0.1;
    return recipe;
  }

  double at_step(const char* name, int64_t step) const {
    return reference_.read(name)[step].to(at::kDouble).item<double>();
  }

  /// Makes `steps` steps and compares each.
  void run(Training& training, int64_t steps) const {
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t step = training.state().step, before = training.state().num_samples;
      training.run(1);
      const StepResult& result = training.result();
      const auto expect_near = [&](double found, const char* name) {
        EXPECT_NEAR(found, at_step(name, step), 1e-10 * at_step(name, step)) << name << " of step " << step;
      };
      expect_near(result.loss, "losses");
      expect_near(result.grad_norm, "grad_norms");
      expect_near(result.part_sums.back() / static_cast<double>(training.num_counted()), "z_losses");
      EXPECT_EQ(result.outliers, at_step("outliers", step)) << step;
      EXPECT_EQ(training.state().num_samples - before, at_step("sizes", step)) << step;
    }
  }

  /// Compares the movement of this rank's weights.
  void expect_weights(Training& training) const {
    const SafetensorsFile first(fixtures() / "llama_gqa_tied/model.safetensors");
    for (const ParameterGroup& group : training.trainer().groups()) {
      group.fsdp->visit_shards([&](const Parameter& parameter) {
        const auto part = [&](const at::Tensor& full) {
          at::Tensor values = full.to(at::kDouble);
          for (size_t dim = 0; dim < parameter.box.start.size(); ++dim) {
            values = values.narrow(static_cast<int64_t>(dim), parameter.box.start[dim], parameter.box.size[dim]);
          }
          return values;
        };
        const at::Tensor wanted = part(reference_.read("weight." + parameter.name));
        const double movement = (wanted - part(first.read(parameter.name))).norm().item<double>();
        EXPECT_LE((parameter.valid() - wanted).norm().item<double>(), 1e-9 * movement) << parameter.name;
      });
    }
  }

  ScratchFolder folder_{world()};
  SafetensorsFile reference_;
};

TEST_F(ReferenceTraining, IsThatOfTransformersWithTheRulesOnEveryMeshAndAcrossAResume) {
  const std::vector<Sizes> all = meshes_in_turn();
  for (size_t i = 0; i < all.size(); ++i) {
    const std::filesystem::path saved = folder_.path() / ("saved" + std::to_string(i));
    {
      Training training(recipe(all[i]), world());
      run(training, kFirstSteps);
      training.save(saved);
      EXPECT_EQ(training.state().recent->losses.size(), 6u);
    }
    Training resumed(recipe(all[(i + 1) % all.size()]), world(), /*resumes=*/true);
    resumed.resume(saved);
    run(resumed, reference_.read("sizes").numel() - kFirstSteps);
    expect_weights(resumed);
  }
}

}  // namespace
}  // namespace meshtrain::testing

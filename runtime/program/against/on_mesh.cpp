#include "runtime/program/against/on_mesh.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "runtime/program/against/step_dump.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/recipe/mesh_size.h"
#include "runtime/program/verify/verify.h"
#include "runtime/training/data/samples.h"
#include "runtime/training/model/folder_tensors.h"

namespace meshtrain {
namespace {

class DumpedSamples final : public Samples {
 public:
  explicit DumpedSamples(const StepDump& dump)
      : inputs_(dump.inputs().contiguous()), labels_(dump.labels().contiguous()) {}

  std::vector<int64_t> read(int64_t g, int64_t* inputs, int64_t* labels) const override {
    const int64_t length = inputs_.size(1);
    std::copy_n(inputs_.const_data_ptr<int64_t>() + g * length, length, inputs);
    std::copy_n(labels_.const_data_ptr<int64_t>() + g * length, length, labels);
    return {};
  }

 private:
  at::Tensor inputs_, labels_;  // [samples, S]
};

/// Returns the recipe that computes the step; an optimizer that is not AdamW is replaced by SGD without momentum.
/// Throws InputError for packed documents and for a mesh whose data ranks cannot have equal numbers of samples.
Recipe recipe_of_step(const StepDump& dump, const std::string& mesh, const std::vector<std::string>& overrides,
                      const std::string& precision) {
  if (!dump.documents().empty()) {
    throw InputError(
        "--mesh: the step has packed documents, which can be compared only with one rank: leave --mesh out");
  }
  const int64_t samples = dump.inputs().size(0), length = dump.inputs().size(1);
  Recipe recipe = recipe_of_folder(dump.weights(), {{"--against", "train.sequence_length", std::to_string(length)},
                                                    {"--against", "train.global_batch", std::to_string(samples)},
                                                    {"--against", "train.micro_batch", "1"}});
  recipe.file = dump.folder();
  recipe.train.clip_norm = dump.clip_norm();
  recipe.train.precision = precision;
  const ModelShape& shape = dump.shape();
  const DumpedUpdate update = dump.update(kEmbedding, {shape.vocab_size, shape.hidden_size}).value_or(DumpedUpdate());
  OptimizerOptions& optimizer = recipe.optimizer;
  optimizer.name = dump.optimizer() == "AdamW" ? "adamw" : "sgd";
  optimizer.learning_rate = update.learning_rate;
  optimizer.betas = {update.beta1, update.beta2};
  optimizer.eps = update.eps;
  optimizer.weight_decay = update.weight_decay;
  recipe = with_overrides(recipe, overrides);
  recipe.parallel.mesh = parse_mesh(mesh);
  const int64_t ranks = known_size(recipe, kDataAxis);
  if (ranks > 0 && samples % ranks != 0) {
    throw InputError("--mesh " + mesh + ": the step has " + counted(samples, "sample") + ", which " +
                     counted(ranks, "data rank") + " cannot share equally");
  }
  return recipe;
}

}  // namespace

StepOnMesh::StepOnMesh(const std::filesystem::path& folder, const std::string& mesh,
                       const std::vector<std::string>& overrides, VerifyOptions options, const Group& world)
    : world_(world), options_(std::move(options)) {
  agree(world_, [&] {
    const StepDump dump(folder);
    samples_ = std::make_unique<DumpedSamples>(dump);
    options_.samples = samples_.get();
    setup_.emplace(
        set_up_verification(recipe_of_step(dump, mesh, overrides, options_.precision), options_, world_.size()));
  });
}

bool StepOnMesh::verify(const std::function<void(const std::string&)>& print) const {
  return meshtrain::verify(*setup_, options_, world_, print);
}

}  // namespace meshtrain

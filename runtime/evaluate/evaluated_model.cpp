#include "runtime/evaluate/evaluated_model.h"

#include <utility>

#include "mesh/agree.h"
#include "mesh/error.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/trainer/assemble.h"
#include "runtime/trainer/data_parallel.h"

namespace meshtrain {
namespace {

/// Returns the recipe of a run that wrote `source`, under the options.
Recipe recipe_of_run(const ModelSource& source, const EvaluationRequest& request) {
  std::vector<KeyOption> options;
  if (request.other_tokens) {
    // These keys belong to the run's own file, whose tokens are masked and counted otherwise.
    for (const char* key : {"evaluate.samples", "evaluate.loss_mask", "evaluate.source"}) {
      options.push_back({"", key, std::nullopt});
    }
  }
  options.insert(options.end(), request.options.begin(), request.options.end());
  Recipe recipe = parse_recipe(read_manifest(source.folder).head.recipe, options);
  if (!recipe.evaluate.tokens.empty()) return recipe;
  throw InputError("--tokens must be given: the recipe of " + source.folder.string() +
                   " has no evaluate.tokens, a file that was not trained on");
}

Recipe recipe_of_model(const ModelSource& source, const EvaluationRequest& request) {
  std::vector<KeyOption> options = {{"", "evaluate.layout", "stream"}};
  bool has_tokens = false, has_length = false;
  for (const KeyOption& option : request.options) {
    has_tokens = has_tokens || option.key == "evaluate.tokens";
    has_length = has_length || option.key == "train.sequence_length";
  }
  if (!has_tokens) throw InputError("--tokens must be given: the file of tokens to evaluate on");
  if (!has_length) {
    const int64_t positions = source.shape.max_position_embeddings;
    throw InputError("--sequence-length must be given: " + source.folder.string() +
                     " does not say in which lengths tokens are evaluated" +
                     (positions > 0 ? ", and takes up to " + std::to_string(positions) : ""));
  }
  options.insert(options.end(), request.options.begin(), request.options.end());
  return recipe_of_folder(source.folder, options);
}

}  // namespace

Recipe recipe_to_evaluate(const ModelSource& source, const EvaluationRequest& request) {
  const Recipe loaded = source.is_checkpoint ? recipe_of_run(source, request) : recipe_of_model(source, request);
  Recipe recipe;  // of the loaded one what an evaluation needs: how a run trained may not fit another mesh
  recipe.name = loaded.name;
  recipe.model.hf = loaded.model.hf;
  recipe.model.shape = loaded.model.shape;
  recipe.evaluate = loaded.evaluate;
  recipe.evaluate.every = 0;
  recipe.train.sequence_length = loaded.train.sequence_length;
  recipe.train.micro_batch = loaded.train.micro_batch;
  recipe.train.seed = loaded.train.seed;
  recipe.train.steps = 1;
  recipe.train.precision = request.precision.value_or(source.precision);
  if (recipe.train.precision != "fp64") recipe.train.residual_dtype = loaded.train.residual_dtype;
  recipe.device = request.device;
  return recipe;
}

Recipe fit_to_mesh(Recipe recipe, const MeshLayout& layout) {
  for (const Axis& axis : layout.axes()) recipe.parallel.mesh[axis.name] = axis.size;
  recipe.train.global_batch = layout.size(kDataAxis) * recipe.train.micro_batch;
  return recipe;
}

EvaluatedModel::EvaluatedModel(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh, at::Device device,
                               const WriteParameter& weights)
    : device_(device), replicas_(map_replicas(plan.sharding, mesh)) {
  ModelPlan model = plan_model(recipe, plan, device);
  model.freeze = {"*"};
  model.fsdp = fsdp_options(recipe, plan, replicas_);
  agree(mesh.world(), [&] {
    model_ = parallelize(model, mesh, weights);
    sequences_.emplace(recipe, plan, mesh, device);
  });
}

}  // namespace meshtrain

#include "runtime/program/evaluate/evaluated_model.h"

#include <algorithm>
#include <filesystem>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/data/file_kind.h"
#include "runtime/training/data/megatron_index.h"
#include "runtime/training/data/token_sidecar.h"
#include "runtime/training/transformer/data_parallel.h"
#include "runtime/training/transformer/stages.h"

namespace meshtrain {
namespace {

bool gives(const EvaluationRequest& request, const std::string& key) {
  return std::ranges::any_of(request.options, [&](const KeyOption& option) { return option.key == key; });
}

/// Returns the value of an option; an empty text without it.
std::string value_of(const EvaluationRequest& request, const std::string& key) {
  for (const KeyOption& option : request.options) {
    if (option.key == key) return option.value.value_or("");
  }
  return "";
}

/// Appends the dtype and the layout that the request's tokens have, under the request's own options: as their sidecar
/// says, or as those of Megatron when an index is beside them, or else of `own`, that of the run's own file, if any.
/// Throws InputError when the request says another layout than the sidecar.
void add_kind(const EvaluationRequest& request, const SourceOptions* own, std::vector<KeyOption>& options) {
  const std::filesystem::path tokens = value_of(request, "evaluate.tokens");
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(tokens, ignored)) return;
  const std::string asked = value_of(request, "evaluate.dtype");
  const std::optional<TokenSidecar> sidecar = read_sidecar(tokens);
  if (!sidecar || (asked == "megatron" && sidecar->data_dtype() != "megatron")) {
    const bool indexed = asked.empty() ? MegatronIndex::is_beside(tokens) : asked == "megatron";
    const bool is_alike = own != nullptr && (own->dtype == "megatron") == indexed;
    if (own != nullptr && own->dtype == "megatron" && asked.empty() && !indexed) {
      const std::string no_tokens = describe_no_tokens(tokens, "uint16");
      if (!no_tokens.empty()) throw InputError("--tokens " + tokens.string() + no_tokens);
      throw InputError("--dtype must be given: the run's own file is a Megatron file, but " + tokens.string() +
                       " has neither an index (.idx) nor a .json file next to it: put its index there, or give the "
                       "type of its tokens");
    }
    if (indexed) options.push_back({"", "evaluate.dtype", "megatron"});
    options.push_back({"", "evaluate.layout", name(is_alike ? own->layout : SampleLayout::Stream)});
    return;
  }
  options.push_back({"", "evaluate.dtype", sidecar->data_dtype()});
  options.push_back({"", "evaluate.layout", name(sidecar->layout)});
  const std::string layout = value_of(request, "evaluate.layout");
  if ((layout == "records" || layout == "stream") && layout != name(sidecar->layout)) {
    throw InputError("--layout " + layout + ": " + tokens.string() + " has the layout " + name(sidecar->layout) +
                     ", as " + sidecar_path(tokens).string() + " says: leave --layout out");
  }
}

/// Returns the token that ends documents of the evaluated file, as this says, or else the run. `asked`: the beginning
/// of the error when neither does.
int64_t own_documents(const Recipe& loaded, const std::string& asked) {
  if (loaded.evaluate.dtype == "megatron") return kDocumentsOfIndex;
  if (const auto sidecar = read_sidecar(loaded.evaluate.tokens); sidecar && sidecar->separator) {
    return *sidecar->separator;
  }
  if (loaded.evaluate.documents.value_or(kDocumentsOfIndex) != kDocumentsOfIndex) return *loaded.evaluate.documents;
  if (const std::optional<int64_t> end = document_end(loaded.data)) return *end;
  throw InputError(asked + ": neither the .json file of " + loaded.evaluate.tokens.string() +
                   " nor the run's data.documents gives the token that ends a document: give its id, or none");
}

/// Sets documents as the request says; without it, those of other tokens than the run's own as these have them, where
/// the run keeps attention inside documents, or where an index lists them for a model that is no run's.
void set_documents(const EvaluationRequest& request, bool is_run, Recipe& loaded) {
  if (request.documents == "own") loaded.evaluate.documents = own_documents(loaded, "--documents own");
  const bool keeps_inside = is_run ? loaded.evaluate.documents.has_value() : loaded.evaluate.dtype == "megatron";
  if (!request.documents && request.other_tokens && keeps_inside) {
    loaded.evaluate.documents =
        own_documents(loaded, "--documents must be given, because the run keeps attention inside documents");
  }
  if (request.documents != "none") return;
  loaded.evaluate.documents.reset();
  if (!gives(request, "evaluate.boundary_labels")) loaded.evaluate.boundaries_count = true;
}

/// Returns the recipe of a run that wrote `source`, under the options.
Recipe recipe_of_run(const ModelSource& source, const EvaluationRequest& request) {
  const std::string yaml = read_manifest(source.folder).head.recipe;
  std::vector<KeyOption> options;
  if (request.other_tokens) {
    // These keys belong to the run's own file, whose tokens are masked and counted otherwise.
    for (const char* key : {"evaluate.samples", "evaluate.loss_mask", "evaluate.source"}) {
      options.push_back({"", key, std::nullopt});
    }
    const EvaluationOptions own = parse_recipe(yaml).evaluate;
    add_kind(request, &own, options);
  }
  options.insert(options.end(), request.options.begin(), request.options.end());
  Recipe recipe = parse_recipe(yaml, options);
  if (!recipe.evaluate.tokens.empty()) return recipe;
  throw InputError("--tokens must be given: the recipe of " + source.folder.string() +
                   " has no evaluate.tokens: give a file that was not trained on");
}

Recipe recipe_of_model(const ModelSource& source, const EvaluationRequest& request) {
  std::vector<KeyOption> options;
  if (!gives(request, "evaluate.tokens")) throw InputError("--tokens must be given: the file of tokens to evaluate on");
  if (!gives(request, "train.sequence_length")) {
    const int64_t positions = source.shape.max_position_embeddings;
    throw InputError("--sequence-length must be given: " + source.folder.string() +
                     " does not give the length of a sample" +
                     (positions > 0 ? "; the model takes up to " + std::to_string(positions) : ""));
  }
  add_kind(request, nullptr, options);
  options.insert(options.end(), request.options.begin(), request.options.end());
  return recipe_of_folder(source.folder, options);
}

}  // namespace

Recipe recipe_to_evaluate(const ModelSource& source, const EvaluationRequest& request) {
  Recipe loaded = source.is_checkpoint ? recipe_of_run(source, request) : recipe_of_model(source, request);
  set_documents(request, source.is_checkpoint, loaded);
  Recipe recipe;  // of the loaded one what an evaluation needs: how a run trained may not fit another mesh
  recipe.name = loaded.name;
  recipe.model.hf = loaded.model.hf;
  recipe.model.shape = loaded.model.shape;
  if (!source.is_checkpoint) recipe.model.shape.adapter = source.shape.adapter;
  recipe.evaluate = loaded.evaluate;
  recipe.evaluate.every = 0;
  recipe.train.sequence_length = loaded.train.sequence_length;
  recipe.train.micro_batch = loaded.train.micro_batch;
  recipe.train.seed = loaded.train.seed;
  recipe.train.precision = request.precision.value_or(source.precision);
  if (recipe.train.precision != "fp64") recipe.train.residual_dtype = loaded.train.residual_dtype;
  recipe.device = request.device;
  recipe.parallel.fsdp.mode = "full_shard";
  recipe.parallel.fsdp.offload = request.offload;
  return recipe;
}

ModelParts evaluated_model(TransformerOptions options, const PipelineMesh& mesh, at::Device device,
                           const WriteParameter& weights) {
  options.freeze = {"*"};
  const ModelReplicas replicas = map_replicas(options.sharding, mesh);
  const std::vector<Range> stages = own_layers(options.pipeline, mesh.complete());
  std::vector<std::shared_ptr<TransformerPart>> parts;
  agree(mesh.complete().world(),
        [&] { parts = make_transformer(options, mesh.stage(), device, replicas, weights, stages); });
  return {parts.begin(), parts.end()};
}

}  // namespace meshtrain

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/program/generate/model_source.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/training/trainer/pipeline_mesh.h"
#include "runtime/training/transformer/transformer_part.h"

namespace meshtrain {

/// The request for an evaluation, beside the model.
struct EvaluationRequest {
  std::vector<KeyOption> options;  ///< keys of `evaluate`, and train.sequence_length and micro_batch
  bool other_tokens = false;       ///< the options name the tokens: keys of a run's own held-out file do not count
  std::optional<std::string> documents;  ///< key `documents`: an id or index; none; own: as the file or the run says
  std::optional<std::string> precision;  ///< fp64 fp32 bf16 fp16; none: that of the weights, or of the run
  std::string device = "auto";
  OffloadRecipe offload = {};  ///< of the weights
};

/// Returns the recipe by which the model of `source` is evaluated. Of a run: the model and `evaluate` as its checkpoint
/// has them, under the request's options. Of a Hugging Face folder: the request's options alone, over a file of layout
/// stream. Where the request names the tokens, their sidecar or index gives dtype, layout and documents that the
/// options leave out; what the run says of its own file counts where these say nothing. Weights are cut over dp x cp
/// (full_shard), and over tp. All other decisions about the mesh are `auto`, because those of the run that wrote a
/// checkpoint are for another mesh. Throws InputError when an option is missing or wrong. Not collective.
Recipe recipe_to_evaluate(const ModelSource& source, const EvaluationRequest& request);

/// Makes the stages of a model that a rank of a mesh computes losses with. They have no gradients, no optimizer, and no
/// memory for them. Parameters are cut over tp, and over dp x cp as the options say. `weights` fills this rank's part
/// of a parameter; it must not issue collectives. Every rank of `mesh` must call it. When `weights` throws on any rank,
/// throws that error on all ranks.
ModelParts evaluated_model(TransformerOptions options, const PipelineMesh& mesh, at::Device device,
                           const WriteParameter& weights);

}  // namespace meshtrain

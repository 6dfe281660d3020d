#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/parameter.h"
#include "runtime/model/shape.h"

namespace meshtrain {

class Tokenizer;

/// A model that is there to be generated from: a Hugging Face folder, or a checkpoint of a run.
struct ModelSource {
  std::filesystem::path folder;        ///< with config.json, or with manifest.json
  std::filesystem::path hugging_face;  ///< where tokenizer and generation_config.json may be: `folder`, or what the run
                                       ///< started from; may be empty, or not there any more
  bool is_checkpoint = false;
  ModelShape shape;
  /// The token that ends a document of what a run was trained on (document_end()).
  std::optional<int64_t> document_end = {};
  std::string precision;  ///< fp64 fp32 bf16 fp16: of the weights in a folder, of what layers of the run computed with
};

/// The folder that `path` means: itself where it has a config.json, else a checkpoint as find_checkpoint() finds it.
/// Throws InputError when it is neither, and when the checkpoint has no manifest.json, with the others beside it.
std::filesystem::path find_model(const std::filesystem::path& path);

/// What the model in `folder`, of find_model(), is. Reads no weights. Throws InputError.
ModelSource read_model_source(const std::filesystem::path& folder);

/// What is wrong with `hugging_face`, as "model.hf of the run's recipe, X, is not there any more"; empty when nothing
/// is.
std::string describe_missing(const ModelSource& source);

/// The ids that end a text: eos_token_id of generation_config.json, else of config.json, else what `tokenizer`, which
/// may be null, names, else what ends the documents of a run's data. Empty when nobody names one. Throws InputError for
/// one that is no id.
std::vector<int64_t> stop_tokens(const ModelSource& source, const Tokenizer* tokenizer);

/// The weights of a model, for parameters cut in any way. Each read takes what lies in the parameter alone; of a
/// checkpoint the pieces that it is in, each proved by its checksum, and never the state of the optimizer.
class ModelWeights {
 public:
  /// Throws InputError when there are none, or when a file is damaged. `source` outlives this.
  explicit ModelWeights(const ModelSource& source);
  ~ModelWeights();

  /// Fills `parameter`, rounded to its dtype. Throws InputError that names what is missing, damaged or of another
  /// shape. No collective.
  void read(const Parameter& parameter);

 private:
  class Reader;
  class FolderReader;
  class CheckpointPieces;
  std::unique_ptr<Reader> reader_;
};

}  // namespace meshtrain

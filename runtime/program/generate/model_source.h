#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/parameter.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {

class Tokenizer;

/// A model to generate from: a Hugging Face folder, or a checkpoint of a run.
struct ModelSource {
  std::filesystem::path folder;        ///< with config.json, or with manifest.json
  std::filesystem::path hugging_face;  ///< where tokenizer and generation_config.json may be: `folder`, or the one that
                                       ///< the run started from; may be empty, or not exist any more
  std::filesystem::path tokenizer = {};             ///< of a run: data.tokenizer of its recipe; empty: none
  std::optional<uint64_t> tokenizer_checksum = {};  ///< of a run: that of the tokenizer's file when the checkpoint was
                                                    ///< written
  int64_t trained_length = 0;                       ///< of a run: tokens of its samples
  std::filesystem::path base = {};                  ///< of a checkpoint with adapters: see move_base()
  bool is_checkpoint = false;
  int64_t step = 0;  ///< of a checkpoint
  ModelShape shape;  ///< of a Hugging Face folder with an adapter: without dropout, and adapter.from is its folder
  /// The token that ends a document in the data of the run (document_end()).
  std::optional<int64_t> document_end = {};
  std::string precision;  ///< fp64 fp32 bf16 fp16: that of the weights in a folder, or of the computation in the run
};

/// Returns the folder that `path` means: itself if it has a config.json, else a checkpoint as find_checkpoint() finds
/// it. Throws InputError when it is neither, and when the checkpoint has no manifest.json, listing the others beside
/// it.
std::filesystem::path find_model(const std::filesystem::path& path);

/// Folders that a model needs beside its own; empty: none.
struct OtherFolders {
  std::filesystem::path adapter = {};  ///< of PEFT, whose adapter the model has
  std::filesystem::path base = {};     ///< of a checkpoint with adapters: see move_base()
};

/// Describes the model in `folder`, of find_model(), without reading weights. Throws InputError, also for an adapter
/// beside a checkpoint, and for a base beside a Hugging Face folder.
ModelSource read_model_source(const std::filesystem::path& folder, const OtherFolders& others = {});

/// Returns what is wrong with `hugging_face`, as "model.hf of the run's recipe, X, does not exist any more"; empty when
/// nothing is.
std::string describe_missing(const ModelSource& source);

/// Returns the name of the model's tokenizer, as load_tokenizer() takes it: that of a run's recipe, else the folder of
/// the model or of the run's model.hf, when it has one; empty when none is there.
std::string tokenizer_of(const ModelSource& source);

/// Returns a line when the tokenizer `name` is not the one that the run had when it wrote the checkpoint; else nothing.
std::string describe_other_tokenizer(const ModelSource& source, const std::string& name);

/// Returns the weight_warnings() of a Hugging Face folder, and describe_other_base_name() of an adapter beside it; none
/// for a checkpoint.
std::vector<std::string> weight_warnings(const ModelSource& source);

/// Returns the ids that end a text: eos_token_id of generation_config.json, else of config.json, else the one that
/// `tokenizer`, which may be null, names, else the one that ends the documents of a run's data. Empty when none is
/// named. Throws InputError for a value that is not an id.
std::vector<int64_t> stop_tokens(const ModelSource& source, const Tokenizer* tokenizer);

/// The weights of a model, for parameters that are sharded in any way. Each read takes only the part in the parameter;
/// from a checkpoint the pieces that it is in, each verified by its checksum, and never the state of the optimizer.
class ModelWeights {
 public:
  /// Opens the weights. Throws InputError when there are none, or when a file is damaged. `source` must outlive this.
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

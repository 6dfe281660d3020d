#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training/model/shape.h"

namespace meshtrain {

/// The files and keys that an export takes over from other Hugging Face folders, besides the weights.
struct CarriedOver {
  std::filesystem::path model;      ///< for the keys of config.json besides the shape's, and generation_config.json
  std::filesystem::path tokenizer;  ///< for the files of its tokenizer
  std::string left_out;             ///< why nothing comes from a folder that was asked for
  std::optional<int64_t> document_end = {};  ///< the token that ended training documents; last choice for eos_token_id
};

/// Returns everything from `folder`, where a model of `shape` came from; nothing from an empty path. Returns nothing
/// but `left_out` when the folder is gone or has another model by now.
CarriedOver carried_over(const std::filesystem::path& folder, const ModelShape& shape);

/// Returns true when a file of this name belongs to a tokenizer: "tokenizer.json", "chat_template.jinja".
bool is_tokenizer_file(const std::string& name);

/// Returns the names of the tokenizer's files in `folder`.
std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);

/// Returns the further keys for write_config_json: those of model/config.json; bos_token_id and eos_token_id of the
/// tokenizer when there are none, else document_end. Throws InputError when a file cannot be read.
std::string further_keys(const CarriedOver& carried);

/// Checks that copy_carried() can read every file. Throws InputError for the first file that cannot be read.
void check_carried(const CarriedOver& carried);

/// Copies the files into `folder`. generation_config.json is that of the model, else that of the tokenizer, else made
/// of further_keys() if these name the tokens at the ends of a text. Throws as OutputFile does, and InputError when a
/// file cannot be read.
void copy_carried(const CarriedOver& carried, const std::filesystem::path& folder);

/// Returns the end of a sentence: ", with the tokenizer of FOLDER", what was left out, and a note when no token is
/// known to end a text.
std::string describe(const CarriedOver& carried);

}  // namespace meshtrain

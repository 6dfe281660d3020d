#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/model/shape.h"

namespace meshtrain {

/// What an export takes over from other Hugging Face folders, beside the weights.
struct CarriedOver {
  std::filesystem::path model;      ///< the keys of its config.json that do not say the shape; generation_config.json
  std::filesystem::path tokenizer;  ///< the files of its tokenizer
  std::string left_out;             ///< why there is nothing from a folder that was asked for
  std::optional<int64_t> document_end = {};  ///< what ended a document in training: eos_token_id where nobody names one
};

/// All of `folder`, where a model of `shape` came from; from an empty path nothing. Nothing either, and it is said,
/// where the folder is gone or has another model by now.
CarriedOver carried_over(const std::filesystem::path& folder, const ModelShape& shape);

/// Returns whether a file of this name belongs to a tokenizer: "tokenizer.json", "chat_template.jinja".
bool is_tokenizer_file(const std::string& name);

/// The files of a tokenizer that are in `folder`, by their names.
std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);

/// For write_config_json: the keys of model/config.json; bos_token_id and eos_token_id of the tokenizer when there are
/// none, else document_end. Throws InputError when a file cannot be read.
std::string further_keys(const CarriedOver& carried);

/// Copies the files into `folder`. generation_config.json is that of the model, else that of the tokenizer, else made
/// of further_keys(), where they name the tokens at the ends of a text. Throws as OutputFile, and InputError when a
/// file cannot be read.
void copy_carried(const CarriedOver& carried, const std::filesystem::path& folder);

/// ", with the tokenizer of FOLDER", what was left out, and that no token is known which ends a text: behind a
/// sentence.
std::string describe(const CarriedOver& carried);

}  // namespace meshtrain

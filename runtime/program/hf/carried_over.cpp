#include "runtime/program/hf/carried_over.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "mesh/base/error.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/json_object.h"
#include "mesh/base/files/output_file.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array<std::string_view, 8> kTokenizerFiles = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "vocab.json", "vocab.txt",
    "merges.txt",     "added_tokens.json"};
constexpr std::string_view kTemplate = "chat_template.";
constexpr const char* kGeneration = "generation_config.json";

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

void carry(const fs::path& from, const fs::path& to) {
  const FileBytes source = read_all(from);
  OutputFile file(to);
  file.append(source.data(), static_cast<size_t>(source.size()));
  file.finish();
}

/// Adds bos_token_id and eos_token_id if `keys` has none and the tokenizer can be loaded. The files of one that cannot
/// are copied all the same.
void add_ends(const fs::path& tokenizer, json& keys) {
  if (keys.contains("bos_token_id") || keys.contains("eos_token_id")) return;
  const auto found = try_load_tokenizer(tokenizer);
  if (found && found->bos()) keys["bos_token_id"] = *found->bos();
  if (found && found->eos()) keys["eos_token_id"] = *found->eos();
}

bool names_end(const json& keys) {
  const auto found = keys.find("eos_token_id");
  return found != keys.end() && !found->is_null();
}

json keys_of(const CarriedOver& carried) {
  json keys = json::object();
  if (!carried.model.empty()) keys = read_json_object(carried.model / "config.json");
  if (!carried.tokenizer.empty()) add_ends(carried.tokenizer, keys);
  if (carried.document_end && !names_end(keys)) keys["eos_token_id"] = *carried.document_end;
  return keys;
}

/// Returns the generation_config.json to copy; empty when there is none.
fs::path generation_config(const CarriedOver& carried) {
  for (const fs::path& source : {carried.model, carried.tokenizer}) {
    if (!source.empty() && is_file(source / kGeneration)) return source / kGeneration;
  }
  return {};
}

/// Returns what transformers itself derives from a config.json; std::nullopt when that would be empty.
std::optional<std::string> made_generation_config(const CarriedOver& carried) {
  const json keys = keys_of(carried);
  json made = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (keys.contains(key) && !keys.at(key).is_null()) made[key] = keys.at(key);
  }
  if (!made.contains("bos_token_id") && !made.contains("eos_token_id")) return std::nullopt;
  return made.dump(2) + "\n";
}

}  // namespace

CarriedOver carried_over(const fs::path& folder, const ModelShape& shape) {
  if (folder.empty()) return {};
  if (!is_file(folder / "config.json")) return {{}, {}, folder.string() + " no longer exists"};
  try {
    const ModelShape found = read_config_json(folder / "config.json");
    if (write_config_json(found, "") != write_config_json(shape, "")) {
      return {{}, {}, folder.string() + " now has a different model"};
    }
  } catch (const InputError& error) {
    return {{}, {}, error.what()};
  }
  return {folder, tokenizer_files(folder).empty() ? fs::path() : folder, {}};
}

bool is_tokenizer_file(const std::string& name) {
  return std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), name) != kTokenizerFiles.end() ||
         name.starts_with(kTemplate);
}

std::vector<std::string> tokenizer_files(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (is_tokenizer_file(name) && is_file(at->path())) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string further_keys(const CarriedOver& carried) {
  return keys_of(carried).dump();
}

void check_carried(const CarriedOver& carried) {
  further_keys(carried);
  if (const fs::path source = generation_config(carried); !source.empty()) read_json_object(source);
  if (carried.tokenizer.empty()) return;
  for (const std::string& name : tokenizer_files(carried.tokenizer)) FileReader(carried.tokenizer / name);
}

void copy_carried(const CarriedOver& carried, const fs::path& folder) {
  if (!carried.tokenizer.empty()) {
    for (const std::string& name : tokenizer_files(carried.tokenizer)) carry(carried.tokenizer / name, folder / name);
  }
  if (const fs::path source = generation_config(carried); !source.empty()) return carry(source, folder / kGeneration);
  if (const auto made = made_generation_config(carried)) write_atomically(folder / kGeneration, *made);
}

std::string describe(const CarriedOver& carried) {
  std::string text;
  if (!carried.tokenizer.empty()) text += ", with the tokenizer of " + carried.tokenizer.string();
  if (!carried.left_out.empty()) text += "; nothing was copied from the recipe's model.hf: " + carried.left_out;
  const fs::path generation = generation_config(carried);
  if (names_end(keys_of(carried)) || (!generation.empty() && names_end(read_json_object(generation)))) return text;
  return text +
         "; it has no eos_token_id, because no token is known to end a text: meshtrain checkpoint export can take it "
         "from --tokenizer";
}

}  // namespace meshtrain

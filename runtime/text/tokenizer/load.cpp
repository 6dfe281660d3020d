#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "mesh/base/files/checksum.h"
#include "mesh/base/files/download.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/json_object.h"
#include "runtime/text/tokenizer/config_tokens.h"
#include "runtime/text/tokenizer/hugging_face.h"
#include "runtime/text/tokenizer/json_cursor.h"
#include "runtime/text/tokenizer/sentencepiece.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kBytes = "bytes";

class BytesTokenizer final : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int64_t>& ids, bool) const override {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }

  std::string decode(const std::vector<int64_t>& ids, bool) const override {
    std::string bytes;
    for (const int64_t id : ids) {
      if (id >= 0 && id < 256) bytes += static_cast<char>(id);
    }
    return bytes;
  }

  int64_t vocabulary_size() const override { return 256; }

  std::optional<int64_t> token_id(const std::string& text) const override {
    return text.size() == 1 ? std::optional<int64_t>(static_cast<unsigned char>(text[0])) : std::nullopt;
  }

  const std::vector<SpecialToken>& special_tokens() const override {
    static const std::vector<SpecialToken> none;
    return none;
  }
};

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return has_entry(path) && !fs::is_directory(path, ignored);
}

// Returns the file of the tokenizer `name`.
fs::path tokenizer_file(const fs::path& name) {
  std::error_code ignored;
  if (!fs::is_directory(name, ignored)) {
    if (!has_entry(name)) {
      throw InputError("cannot read " + name.string() +
                       ": there is no such file or folder; a tokenizer is a folder with tokenizer.json or "
                       "tokenizer.model, one of these files, or the word bytes");
    }
    return name;
  }
  if (const fs::path file = tokenizer_file_in(name); !file.empty()) return file;
  throw InputError(name.string() + ": the folder has neither tokenizer.json nor tokenizer.model");
}

// Returns the token that the files beside the tokenizer call `key`.
std::optional<int64_t> configured(const ConfigTokens& beside, const std::string& key, const Tokenizer& tokenizer) {
  for (const auto& [name, token] : beside.named) {
    if (name != key || token.token.content.empty()) continue;
    if (const std::optional<int64_t> id = tokenizer.token_id(token.token.content)) return id;
    throw InputError(token.source + " is \"" + token.token.content +
                     "\", which is not a token of the tokenizer in this folder");
  }
  return std::nullopt;
}

// Returns the id under `key` of config.json, or the first of a list of ids.
std::optional<int64_t> numbered(const JsonCursor& config, const std::string& key) {
  const std::optional<JsonCursor> found = config.find(key);
  if (!found) return std::nullopt;
  if (!found->value().is_array()) return found->id();
  return found->size() == 0 ? std::nullopt : std::optional<int64_t>(found->at(size_t{0}).id());
}

void read_ends(const fs::path& folder, Tokenizer& tokenizer) {
  const ConfigTokens beside = read_config_tokens(folder, nullptr);
  tokenizer.set_ends(configured(beside, "bos_token", tokenizer), configured(beside, "eos_token", tokenizer));
  if (const fs::path file = folder / "config.json"; (!tokenizer.bos() || !tokenizer.eos()) && is_file(file)) {
    const json document = read_json_object(file.string());
    const JsonCursor config(file.string(), document);
    tokenizer.set_ends(tokenizer.bos() ? std::nullopt : numbered(config, "bos_token_id"),
                       tokenizer.eos() ? std::nullopt : numbered(config, "eos_token_id"));
  }
}

// Returns true when LlamaTokenizer of transformers would put the token for the beginning before a text.
bool adds_begin(const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  if (!is_file(file)) return false;
  const json document = read_json_object(file.string());
  return JsonCursor(file.string(), document).flag_or("add_bos_token", false);
}

}  // namespace

fs::path tokenizer_file_in(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (!folder.empty() && is_file(folder / name)) return folder / name;
  }
  return {};
}

void Tokenizer::set_ends(std::optional<int64_t> bos, std::optional<int64_t> eos) {
  if (bos) bos_ = bos;
  if (eos) eos_ = eos;
}

std::vector<int64_t> Tokenizer::ids(std::string_view text, bool add_special) const {
  std::vector<int64_t> result;
  encode(text, result, add_special);
  return result;
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name) {
  if (name == kBytes) return std::make_shared<BytesTokenizer>();
  const fs::path file = tokenizer_file(name);
  const fs::path folder = file.parent_path();
  const bool sentencepiece = file.extension() == ".model";
  const std::shared_ptr<Tokenizer> tokenizer = sentencepiece
                                                   ? sentencepiece_tokenizer(file.string(), adds_begin(folder))
                                                   : hugging_face_tokenizer(file.string());
  read_ends(folder, *tokenizer);
  return tokenizer;
}

std::shared_ptr<const Tokenizer> try_load_tokenizer(const std::string& name) try {
  return load_tokenizer(name);
} catch (const InputError&) {
  return nullptr;
}

void check_vocabulary(const Tokenizer& tokenizer, int64_t vocab_size, const std::string& where) {
  const int64_t size = tokenizer.vocabulary_size();
  if (size <= vocab_size) return;
  throw InputError(where + ": its ids go up to " + std::to_string(size - 1) + ", but those of the model up to " +
                   std::to_string(vocab_size - 1) + ": give the tokenizer that the model was trained with");
}

std::string tokenizer_fingerprint(const std::string& name) {
  if (name == kBytes) return name;
  const fs::path path = tokenizer_file(name);
  const FileBytes file = read_all(path);
  const uint64_t own = checksum(file.data(), static_cast<size_t>(file.size()));
  const auto exists = [&](const char* beside) { return is_file(path.parent_path() / beside); };
  const bool is_alone =
      path.extension() == ".model" ||
      !(exists("tokenizer_config.json") || exists("special_tokens_map.json") || exists("added_tokens.json"));
  const std::string beside = is_alone ? "" : read_hugging_face(path.string()).beside;
  if (beside.empty()) return checksum_text(own);
  const std::string both = checksum_text(own) + beside;
  return checksum_text(checksum(both.data(), both.size()));
}

}  // namespace meshtrain

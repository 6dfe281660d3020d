#include "runtime/text/tokenizer/config_tokens.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "mesh/base/files/download.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/json_object.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array kStandard = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kAdditional = "additional_special_tokens";

bool is_standard(const std::string& key) {
  return std::ranges::find(kStandard, key) != kStandard.end();
}

/// A JSON object in a file, empty where there is no such file, with the order of its keys and of those of its
/// extra_special_tokens: the order decides on ids.
struct TokenFile {
  TokenFile(const fs::path& folder, const char* name) : path((folder / name).string()) {
    if (!has_entry(path)) return;
    std::string open;  // the key of the document whose value is read
    object = parse_json_object(path, read_all(path).text(), [&](int depth, json::parse_event_t event, json& parsed) {
      if (event != json::parse_event_t::key) return true;
      const auto key = parsed.get<std::string>();
      if (depth == 1) keys.push_back(open = key);
      if (depth == 2 && open == kExtra) extra_keys.push_back(key);
      return true;
    });
  }
  JsonCursor root() const { return {path, object}; }

  std::string path;
  json object = json::object();
  std::vector<std::string> keys, extra_keys;
};

std::string source_of(const std::string& file, const std::string& path) {
  return file + ": " + path;
}

/// Returns true for values that transformers takes for a token where it does not know the key.
bool is_surely_token(const json& value) {
  return value.is_string() || (value.is_object() && value.contains("__type"));
}

/// Reads a token: a text, which stands for a special token, or an object of content and flags. `is_special`: the token
/// is special in any case.
ConfigToken read_token(const JsonCursor& value, const std::string& source, bool is_special) {
  ConfigToken read{.source = source};
  AddedToken& token = read.token;
  if (!value.value().is_object()) {
    if (!value.value().is_string()) value.fail("is neither the text of a token nor an object with its \"content\"");
    token.content = value.text();
    token.special = read.is_text = true;
    return read;
  }
  token.content = value.at("content").text();
  token.single_word = value.flag_or("single_word", false);
  token.strip_left = value.flag_or("lstrip", false);
  token.strip_right = value.flag_or("rstrip", false);
  token.special = is_special || value.flag_or("special", false);
  token.normalized = value.flag_or("normalized", !token.special);
  return read;
}

bool same_flags(const AddedToken& a, const AddedToken& b) {
  return a.single_word == b.single_word && a.strip_left == b.strip_left && a.strip_right == b.strip_right &&
         a.normalized == b.normalized && a.special == b.special;
}

bool equal(const ConfigToken& a, const ConfigToken& b) {
  return a.is_text == b.is_text && a.token.content == b.token.content && same_flags(a.token, b.token);
}

using NamedTokens = std::vector<std::pair<std::string, ConfigToken>>;

void set_named(NamedTokens& named, const std::string& key, ConfigToken token) {
  const auto found = std::ranges::find(named, key, &NamedTokens::value_type::first);
  if (found == named.end()) {
    named.emplace_back(key, std::move(token));
  } else {
    found->second = std::move(token);
  }
}

void remove_named(NamedTokens& named, const std::string& key) {
  std::erase_if(named, [&](const auto& entry) { return entry.first == key; });
}

/// A reader of the files, in the order of transformers' from_pretrained().
class FilesReader {
 public:
  FilesReader(const fs::path& folder, const JsonCursor* tokenizer) : config_(folder, "tokenizer_config.json") {
    read_config();
    const std::optional<JsonCursor> decoder = config_.object.contains("added_tokens_decoder")
                                                  ? std::optional(config_.root().at("added_tokens_decoder"))
                                                  : std::nullopt;
    if (decoder) {
      read_decoder(*decoder);
    } else {
      read_map(TokenFile(folder, "special_tokens_map.json"));
      read_added(TokenFile(folder, "added_tokens.json"));
    }
    if (tokenizer != nullptr) read_tokenizer(*tokenizer, /*keeps=*/!decoder.has_value());
    // The constructor of the tokenizer's class knows the older key for itself.
    if (!has_extra_ && additional_) extra_ = std::move(*additional_);
  }

  ConfigTokens result() {
    ConfigTokens result;
    for (const char* key : kStandard) {
      const auto found = std::ranges::find(standard_, key, &NamedTokens::value_type::first);
      if (found != standard_.end()) result.named.push_back(*found);
    }
    for (auto& [key, token] : specific_) set_named(further_, key, std::move(token));
    result.named.insert(result.named.end(), further_.begin(), further_.end());

    for (auto& [id, token] : decoder_) {
      known_.insert(token.token.content);
      result.added.push_back(std::move(token));
    }
    const auto add = [&](const ConfigToken& token) {
      if (known_.contains(token.token.content)) return;
      const auto is_equal = [&](const ConfigToken& other) { return equal(token, other); };
      if (std::ranges::none_of(result.added, is_equal)) result.added.push_back(token);
    };
    for (const auto& [key, token] : result.named) add(token);
    for (const ConfigToken& token : extra_) add(token);
    std::set<std::string> names;
    for (const auto& [key, token] : result.named) names.insert(token.token.content);
    for (ConfigToken& token : result.added) {
      token.token.special = token.token.special || names.contains(token.token.content);
    }
    return result;
  }

 private:
  std::vector<ConfigToken> read_list(const TokenFile& file, const char* key, bool is_special) {
    std::vector<ConfigToken> tokens;
    const std::optional<JsonCursor> list = file.root().find(key);
    if (!list) return tokens;
    if (!list->value().is_array()) list->fail("is not a list of tokens");
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string path = std::string(key) + "[" + std::to_string(i) + "]";
      tokens.push_back(read_token(list->at(i), source_of(file.path, path), is_special));
    }
    return tokens;
  }

  void read_specific(const TokenFile& file) {
    const JsonCursor object = file.root().at(kExtra);
    for (const std::string& key : file.extra_keys) {
      const std::string path = std::string(kExtra) + "." + key;
      set_named(specific_, key, read_token(object.at(key), source_of(file.path, path), false));
    }
  }

  void read_config() {
    const json& object = config_.object;
    if (config_.root().flag_or("split_special_tokens", false)) {
      config_.root()
          .at("split_special_tokens")
          .fail("is true, which is not supported: special tokens in a text are always found");
    }
    for (const std::string& key : config_.keys) {
      const json& value = object.at(key);
      if (value.is_null() || !key.ends_with("_token") || (!is_standard(key) && !is_surely_token(value))) continue;
      ConfigToken token = read_token(config_.root().at(key), source_of(config_.path, key), false);
      NamedTokens& target = is_standard(key) ? standard_ : token.is_text ? specific_ : further_;
      set_named(target, key, std::move(token));
    }
    pads_itself_ = object.contains("pad_token");
    const auto extra = object.find(kExtra);
    const bool is_set = extra != object.end() && !extra->is_null() && !(extra->is_structured() && extra->empty());
    if (!is_set && object.contains(kAdditional)) {
      has_extra_ = true;
      extra_ = read_list(config_, kAdditional, false);
    } else if (is_set && extra->is_object()) {
      read_specific(config_);
      if (object.contains(kAdditional)) additional_ = read_list(config_, kAdditional, false);
    } else if (extra != object.end() && !extra->is_object()) {
      has_extra_ = true;
      extra_ = read_list(config_, kExtra, false);
    }
  }

  void read_map(const TokenFile& map) {
    for (const std::string& key : map.keys) {
      const json& value = map.object.at(key);
      if (key == kExtra && value.is_object()) {
        read_specific(map);
        has_extra_ = false;
        extra_.clear();
      } else if (key == kExtra) {
        has_extra_ = true;
        for (const ConfigToken& token : read_list(map, kExtra, true)) {
          const auto is_equal = [&](const ConfigToken& other) { return equal(token, other); };
          if (std::ranges::none_of(extra_, is_equal)) extra_.push_back(token);
        }
      } else if (key == kAdditional) {
        additional_ = read_list(map, kAdditional, true);
      } else if (is_standard(key) && value.is_null()) {
        remove_named(standard_, key);
        pads_itself_ = pads_itself_ || key == "pad_token";
      } else if (is_standard(key) || (key.ends_with("_token") && (value.is_string() || value.is_object()))) {
        pads_itself_ = pads_itself_ || key == "pad_token";
        ConfigToken token = read_token(map.root().at(key), source_of(map.path, key), true);
        set_named(is_standard(key) ? standard_ : further_, key, std::move(token));
      }
    }
  }

  void read_added(const TokenFile& file) {
    std::set<std::string> special;
    for (const auto& [key, token] : standard_) special.insert(token.token.content);
    for (const ConfigToken& token : extra_) special.insert(token.token.content);
    for (const std::string& content : file.keys) {
      ConfigToken token{.source = source_of(file.path, "\"" + content + "\"")};
      token.token.content = content;
      token.token.special = special.contains(content);
      token.token.normalized = !token.token.special;
      decoder_.insert_or_assign(file.root().at(content).id(), token);
    }
  }

  void read_decoder(const JsonCursor& decoder) {
    if (!decoder.value().is_object()) decoder.fail("is not an object of ids and tokens");
    for (const auto& [key, value] : decoder.value().items()) {
      uint32_t id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      const JsonCursor token = decoder.at(key);
      if (error != std::errc() || end != key.data() + key.size()) token.fail("must be named by a token id");
      if (!value.is_object()) token.fail("is not an object of a token's content and flags");
      decoder_.insert_or_assign(id, read_token(token, source_of(config_.path, "added_tokens_decoder." + key), false));
    }
  }

  /// Takes over the added tokens of tokenizer.json. `keeps`: they are added once more, for those that have a name
  /// become special by it.
  void read_tokenizer(const JsonCursor& tokenizer, bool keeps) {
    if (const std::optional<JsonCursor> added = tokenizer.find("added_tokens")) {
      for (size_t i = 0; i < added->size(); ++i) {
        const JsonCursor token = added->at(i);
        known_.insert(token.at("content").text());
        if (!keeps) continue;
        const std::string source = "tokenizer.json: added_tokens[" + std::to_string(i) + "]";
        decoder_.insert_or_assign(token.at("id").id(), read_token(token, source, false));
      }
    }
    const std::optional<JsonCursor> padding = tokenizer.find("padding");
    const std::optional<JsonCursor> pad = padding ? padding->find("pad_token") : std::nullopt;
    if (pad && !pads_itself_) {
      set_named(standard_, "pad_token", read_token(*pad, "tokenizer.json: padding.pad_token", false));
    }
  }

  TokenFile config_;
  NamedTokens standard_, further_, specific_;  // specific: as extra_special_tokens has them
  bool pads_itself_ = false;                   // a file has the key pad_token
  bool has_extra_ = false;
  std::vector<ConfigToken> extra_;
  std::optional<std::vector<ConfigToken>> additional_;  // of special_tokens_map.json
  std::map<uint32_t, ConfigToken> decoder_;
  std::set<std::string> known_;
};

}  // namespace

ConfigTokens read_config_tokens(const fs::path& folder, const JsonCursor* tokenizer) {
  return FilesReader(folder, tokenizer).result();
}

}  // namespace meshtrain

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/json_object.h"
#include "runtime/text/tokenizer/byte_alphabet.h"
#include "runtime/text/tokenizer/config_tokens.h"
#include "runtime/text/tokenizer/hugging_face.h"
#include "runtime/text/tokenizer/json_cursor.h"

namespace meshtrain {
namespace {

void read_template(const JsonCursor& processor, HuggingFaceParts& parts) {
  const JsonCursor pieces = processor.at("single");
  std::vector<int64_t> before, after;
  bool text_seen = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const JsonCursor piece = pieces.at(i);
    if (const std::optional<JsonCursor> sequence = piece.find("Sequence")) {
      if (text_seen || sequence->at("id").text() != "A") piece.fail("is not Sequence A, the only one supported");
      text_seen = true;
      continue;
    }
    const std::string name = piece.at("SpecialToken").at("id").text();
    const JsonCursor ids = processor.at("special_tokens").at(name).at("ids");
    for (size_t k = 0; k < ids.size(); ++k) (text_seen ? after : before).push_back(ids.at(k).id());
  }
  if (!text_seen) pieces.fail("has no Sequence");
  parts.before.insert(parts.before.begin(), before.begin(), before.end());
  parts.after.insert(parts.after.end(), after.begin(), after.end());
}

// Reads a token as a pair of its text and its id.
uint32_t read_token_id(const JsonCursor& token) {
  if (token.size() != 2) token.fail("must have a token and its id");
  return token.at(size_t{1}).id();
}

void read_post_processor(const JsonCursor& processor, HuggingFaceParts& parts, int depth = 0) {
  refuse_deep(processor, depth);
  const std::string type =
      processor.type_of("ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence");
  if (type == "TemplateProcessing") read_template(processor, parts);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    parts.before.insert(parts.before.begin(), read_token_id(processor.at("cls")));
    parts.after.push_back(read_token_id(processor.at("sep")));
  }
  if (type != "Sequence") return;
  const JsonCursor all = processor.at("processors");
  for (size_t i = 0; i < all.size(); ++i) read_post_processor(all.at(i), parts, depth + 1);
}

void read_vocabulary(const JsonCursor& vocabulary, HuggingFaceParts& parts) {
  if (!vocabulary.value().is_object()) vocabulary.fail("is not an object of tokens and their ids");
  std::unordered_map<uint32_t, std::string> texts;
  for (const auto& [text, unused] : vocabulary.value().items()) {
    const uint32_t id = vocabulary.at(text).id();
    if (const auto [other, fresh] = texts.emplace(id, text); !fresh) {
      vocabulary.fail("has id " + std::to_string(id) + " twice: \"" + other->second + "\" and \"" + text + "\"");
    }
    parts.ids.emplace(text, id);
    if (!parts.is_byte_level) {
      parts.bpe.ids.emplace(text, id);
    } else if (const std::optional<std::string> bytes = bytes_of_token(text)) {
      parts.bpe.ids.emplace(*bytes, id);
    }
  }
}

std::pair<std::string, std::string> read_pair(const JsonCursor& merge) {
  if (merge.value().is_array()) {
    if (merge.size() != 2) merge.fail("must have two tokens");
    return {merge.at(0).text(), merge.at(1).text()};
  }
  const std::string text = merge.text();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    merge.fail("is not two tokens with one space between: \"" + text + "\"");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const JsonCursor& merges, HuggingFaceParts& parts) {
  parts.bpe.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const JsonCursor merge = merges.at(i);
    if (merge.value().is_string() && merge.text().starts_with("#version")) continue;
    const auto [left, right] = read_pair(merge);
    const auto id = [&](const std::string& token) {
      const auto found = parts.ids.find(token);
      if (found == parts.ids.end()) merge.fail("has the token \"" + token + "\", which is not in model.vocab");
      return found->second;
    };
    const auto rank = static_cast<uint32_t>(parts.bpe.merges.size());
    parts.bpe.merges.push_back({id(left), id(right), rank, id(left + right)});
  }
}

// Reads the tokens <0x00> to <0xFF>.
void read_fallback(HuggingFaceParts& parts) {
  parts.bpe.fallback.resize(256);
  for (size_t byte = 0; byte < parts.bpe.fallback.size(); ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    const auto found = parts.ids.find(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">");
    if (found != parts.ids.end()) parts.bpe.fallback[byte] = found->second;
  }
}

void read_model(const JsonCursor& model, HuggingFaceParts& parts) {
  if (model.find("type")) model.type_of("BPE");  // older files have none
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.text_or(key, "").empty()) model.at(key).fail("is not empty, which is not supported");
  }
  const bool falls_back = model.flag_or("byte_fallback", false);
  if (falls_back && parts.is_byte_level) {
    model.at("byte_fallback").fail("is true, which is not supported: every byte is a token in byte-level BPE");
  }
  if (const auto dropout = model.find("dropout"); dropout && dropout->value() != 0) {
    dropout->fail("is not 0: the ids of a text would be random");
  }
  read_vocabulary(model.at("vocab"), parts);
  read_merges(model.at("merges"), parts);
  parts.bpe.whole_words = model.flag_or("ignore_merges", false);
  parts.bpe.fuse_unknown = model.flag_or("fuse_unk", false);
  if (const std::string unknown = model.text_or("unk_token", ""); !unknown.empty()) {
    if (const auto found = parts.ids.find(unknown); found != parts.ids.end()) parts.bpe.unknown = found->second;
  }
  if (!parts.is_byte_level) {
    parts.bpe.of_characters = true;
    if (falls_back) read_fallback(parts);
    const bool is_complete = std::ranges::all_of(parts.bpe.fallback, [](const auto& id) { return id.has_value(); });
    if (parts.bpe.unknown || model.text_or("unk_token", "").empty() || (falls_back && is_complete)) return;
    model.at("unk_token").fail("is not in model.vocab");
  }
  if (parts.bpe.unknown) return;
  for (int byte = 0; byte < 256; ++byte) {
    if (parts.bpe.ids.contains(std::string(1, static_cast<char>(byte)))) continue;
    if (model.text_or("unk_token", "").empty()) return;  // such bytes are left out, as in the package
    model.at("unk_token")
        .fail("is not in model.vocab, and neither is the byte " + std::to_string(byte) + ", \"" +
              written_byte(static_cast<unsigned char>(byte)) + "\"");
  }
}

// Reads the added tokens. Their ids must be those of model.vocab, or else the next free ones, as the package numbers
// them.
void read_added_tokens(const JsonCursor& tokens, HuggingFaceParts& parts) {
  auto next = static_cast<uint32_t>(parts.ids.size());
  std::set<std::string> contents;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const JsonCursor token = tokens.at(i);
    AddedToken added;
    added.content = token.at("content").text();
    added.single_word = token.at("single_word").flag();
    added.strip_left = token.at("lstrip").flag();
    added.strip_right = token.at("rstrip").flag();
    added.normalized = token.at("normalized").flag();
    added.special = token.at("special").flag();
    const uint32_t wanted = token.at("id").id();
    if (added.content.empty()) continue;
    const auto known = parts.ids.find(added.content);
    added.id = known != parts.ids.end() ? known->second : next++;
    if (added.id != wanted) {
      token.at("id").fail("is " + std::to_string(wanted) + ", but \"" + added.content + "\" has to be " +
                          std::to_string(added.id) + ": its id in model.vocab, or the next one after it");
    }
    if (added.normalized && parts.normalizer.apply(added.content).empty()) {
      token.at("content").fail("is empty when it is normalised");
    }
    if (!contents.insert(added.content).second) {
      token.fail("has the same text as a token before it, \"" + added.content + "\"");
    }
    parts.added.push_back(std::move(added));
  }
}

// Adds the tokens of the files beside tokenizer.json as the package's add_tokens() does: a known one takes the new
// flags, and stays special once it has been.
void add_config_tokens(const std::vector<ConfigToken>& tokens, HuggingFaceParts& parts) {
  auto next = static_cast<uint32_t>(parts.ids.size());
  std::unordered_map<std::string, size_t> known;
  for (const AddedToken& token : parts.added) {
    next = std::max(next, token.id + 1);
    known.emplace(token.content, known.size());
  }
  for (const ConfigToken& beside : tokens) {
    AddedToken added = beside.token;
    if (added.content.empty()) continue;
    const auto [found, is_new] = known.emplace(added.content, parts.added.size());
    if (is_new) {
      const auto of_model = parts.ids.find(added.content);
      added.id = of_model != parts.ids.end() ? of_model->second : next++;
      parts.added.push_back(added);
    } else {
      AddedToken& old = parts.added[found->second];
      added.id = old.id;
      added.special = added.special || old.special;
      if (added == old) continue;
      old = added;
    }
    parts.beside += nlohmann::json({added.id, added.content, added.single_word, added.strip_left, added.strip_right,
                                    added.normalized, added.special})
                        .dump();
  }
}

void set_patterns(const std::string& file, HuggingFaceParts& parts) {
  std::set<std::pair<bool, std::string>> patterns;
  for (AddedToken& token : parts.added) {
    token.pattern = token.normalized ? parts.normalizer.apply(token.content) : token.content;
    const std::string subject = file + ": the added token \"" + token.content + "\" ";
    if (token.pattern.empty()) throw InputError(subject + "is empty when it is normalised");
    if (!patterns.emplace(token.normalized, token.pattern).second) {
      throw InputError(subject + "is searched for as the same text as one before it, \"" + token.pattern + "\"");
    }
  }
}

}  // namespace

HuggingFaceParts read_hugging_face(const std::string& file) {
  const nlohmann::json document = read_json_object(file);
  const JsonCursor root(file, document);
  if (!root.find("model")) {
    root.fail(
        "is not a tokenizer.json, because it has no model: give a tokenizer.json, a SentencePiece *.model, a folder "
        "with "
        "one of them, or the word bytes");
  }
  HuggingFaceParts parts;
  if (const std::string version = root.text_or("version", "1.0"); version != "1.0") {
    root.at("version").fail("is \"" + version + "\", not \"1.0\"");
  }
  if (const auto normalizer = root.find("normalizer")) read_normalizer(*normalizer, parts);
  if (const auto pre_tokenizer = root.find("pre_tokenizer")) read_pre_tokenizer(*pre_tokenizer, parts);
  read_decoder(root, parts);
  if (const auto processor = root.find("post_processor")) read_post_processor(*processor, parts);
  read_model(root.at("model"), parts);
  if (const auto tokens = root.find("added_tokens")) read_added_tokens(*tokens, parts);
  add_config_tokens(read_config_tokens(std::filesystem::path(file).parent_path(), &root).added, parts);
  set_patterns(file, parts);
  return parts;
}

}  // namespace meshtrain

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

/// A token that stands for no text of its own: <|endoftext|>.
struct SpecialToken {
  std::string text;
  int64_t id = 0;
};

/// A map from text to token ids and back. Immutable: any number of threads may use one at the same time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text` to `ids`, with the tokens that the tokenizer itself puts around a text (Llama 3 begins
  /// each with <|begin_of_text|>) when `add_special`. Special tokens that are written out in the text are recognised,
  /// as in the `tokenizers` package. Bytes that are not UTF-8 are read as U+FFFD, one for each maximal part of a
  /// character, as Python's bytes.decode(errors="replace") does before the package sees the text; the bytes tokenizer
  /// keeps every byte. Throws InputError when a tokenizer's own pattern needs too many steps for this text.
  virtual void encode(std::string_view text, std::vector<int64_t>& ids, bool add_special = true) const = 0;

  /// Returns the bytes of `ids`, which are not valid UTF-8 when they stop within a character. Unknown ids have no
  /// bytes, nor have special tokens when `skip_special`.
  virtual std::string decode(const std::vector<int64_t>& ids, bool skip_special = false) const = 0;

  /// Returns the largest id plus one: the least vocab_size that a model for it may have.
  virtual int64_t vocabulary_size() const = 0;
  /// Returns the id of the token with this text, special or not; std::nullopt when there is none.
  virtual std::optional<int64_t> token_id(const std::string& text) const = 0;
  /// Returns the special tokens in the order of their ids.
  virtual const std::vector<SpecialToken>& special_tokens() const = 0;

  /// Return the tokens that begin and end a text, if files beside the tokenizer name them (tokenizer_config.json's
  /// bos_token and eos_token, else config.json's bos_token_id and eos_token_id, of several the first; SentencePiece's
  /// own).
  std::optional<int64_t> bos() const { return bos_; }
  std::optional<int64_t> eos() const { return eos_; }
  /// Sets bos() and eos(); an absent argument leaves the old one.
  void set_ends(std::optional<int64_t> bos, std::optional<int64_t> eos);

  /// Returns the ids of `text`, as encode() appends them.
  std::vector<int64_t> ids(std::string_view text, bool add_special = true) const;

 private:
  std::optional<int64_t> bos_, eos_;
};

/// Loads a tokenizer. `name`: "bytes" (ids 0 to 255, the bytes of the text as they are); a tokenizer.json; a
/// SentencePiece model (*.model); or a folder with one of these two, tokenizer.json first.
///
/// Supports tokenizer.json files with BPE: byte-level, as of GPT-2, Llama 3, SmolLM2 and Qwen, and of characters, as of
/// Llama 2, Mistral and Gemma, converted from SentencePiece. The ids are those of the `tokenizers` package 0.23, its
/// several Unicode versions included:
///   normalizer      NFC, NFD, NFKC, NFKD, Strip, Prepend, Replace, Sequence
///   pre_tokenizer   ByteLevel, Metaspace, Split (String or Regex, every behavior, invert), Digits, Whitespace,
///                   WhitespaceSplit, Punctuation, Sequence; ByteLevel last
///   model           BPE with merges of either form, ignore_merges, unk_token, fuse_unk, byte_fallback
///   post_processor  ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence
///   decoder         ByteLevel, Replace, ByteFallback, Fuse, Strip (of the beginning), Metaspace, Sequence
///   added_tokens    lstrip, rstrip, single_word, normalized, special
/// and with the special tokens of tokenizer_config.json, special_tokens_map.json and added_tokens.json beside it those
/// of transformers 5, which adds what tokenizer.json lacks and takes the flags of added_tokens_decoder.
/// truncation and padding are ignored, as transformers ignores them by default.
///
/// Throws InputError when the file cannot be read, is malformed, or needs anything else; the message names the file,
/// the JSON path and what is supported.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name);

/// Returns the tokenizer of this name; null when load_tokenizer() throws: it does not exist or is of a kind that is not
/// supported.
std::shared_ptr<const Tokenizer> try_load_tokenizer(const std::string& name);

/// Returns the file of a folder that load_tokenizer() reads, tokenizer.json or else tokenizer.model; empty when it has
/// neither, and for an empty path.
std::filesystem::path tokenizer_file_in(const std::filesystem::path& folder);

/// Throws InputError that begins with `where` when `tokenizer` has ids of `vocab_size` or above.
void check_vocabulary(const Tokenizer& tokenizer, int64_t vocab_size, const std::string& where);

/// Returns what the ids of a text depend on: "bytes", or the checksum of the tokenizer's file and of the added tokens
/// in which the files beside it differ from it. The same on every machine.
std::string tokenizer_fingerprint(const std::string& name);

}  // namespace meshtrain

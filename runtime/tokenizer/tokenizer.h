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

/// Text to token ids and back. Immutable: any number of threads may use one at the same time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text` to `ids`, with the tokens that the tokenizer itself puts around a text (Llama 3 begins
  /// each with <|begin_of_text|>) when `add_special`. Special tokens that are written out in the text are recognised,
  /// as in the `tokenizers` package. Bytes that are no UTF-8 are read as U+FFFD, one for each maximal part of a
  /// character, as Python's bytes.decode(errors="replace") does before the package sees the text; the bytes tokenizer
  /// keeps every byte. Throws InputError when a tokenizer's own pattern needs too many steps for this text.
  virtual void encode(std::string_view text, std::vector<int64_t>& ids, bool add_special = true) const = 0;

  /// The bytes of `ids`, which are no UTF-8 where they stop within a character. Ids that the tokenizer does not know
  /// stand for nothing, and special tokens too when `skip_special`.
  virtual std::string decode(const std::vector<int64_t>& ids, bool skip_special = false) const = 0;

  /// The largest id plus one: what a model's vocab_size has to be at least.
  virtual int64_t vocabulary_size() const = 0;
  /// The id of a token by its text, special or not.
  virtual std::optional<int64_t> token_id(const std::string& text) const = 0;
  /// In the order of their ids.
  virtual const std::vector<SpecialToken>& special_tokens() const = 0;

  /// The tokens that begin and end a text, where files beside the tokenizer say so (tokenizer_config.json's bos_token
  /// and eos_token, else config.json's bos_token_id and eos_token_id, of several the first; SentencePiece's own).
  std::optional<int64_t> bos() const { return bos_; }
  std::optional<int64_t> eos() const { return eos_; }
  /// Names them; what is absent stays as it was.
  void set_ends(std::optional<int64_t> bos, std::optional<int64_t> eos);

  /// encode() into a list of its own.
  std::vector<int64_t> ids(std::string_view text, bool add_special = true) const;

 private:
  std::optional<int64_t> bos_, eos_;
};

/// `name`: "bytes" (ids 0 to 255, the bytes of the text as they are); a tokenizer.json; a SentencePiece model
/// (*.model); or a folder with one of these two, tokenizer.json first.
///
/// Of tokenizer.json byte-level BPE is read, as GPT-2, Llama 3, SmolLM2 and Qwen have it, and gives the ids of the
/// `tokenizers` package 0.23, its several Unicode versions included:
///   normalizer      NFC, Sequence
///   pre_tokenizer   ByteLevel, Split (String or Regex, every behavior, invert), Digits, Sequence; ByteLevel last
///   model           BPE with merges of either form, ignore_merges, unk_token, fuse_unk
///   post_processor  ByteLevel, TemplateProcessing, Sequence
///   decoder         ByteLevel
///   added_tokens    lstrip, rstrip, single_word, normalized, special
/// truncation and padding are left out, as transformers leaves them out unless it is asked.
///
/// Throws InputError when the file cannot be read, is malformed, or asks for something else: file, JSON path, what is
/// supported.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name);

/// Throws InputError that begins with `where` when `tokenizer` has ids that a model of `vocab_size` has not.
void check_vocabulary(const Tokenizer& tokenizer, int64_t vocab_size, const std::string& where);

/// Returns what tells tokenizers apart, the same on every machine: "bytes", or the checksum of the tokenizer's file.
std::string tokenizer_fingerprint(const std::string& name);

}  // namespace meshtrain

#include "runtime/text/tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include "mesh/base/error.h"
#include "mesh/base/files/content.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/tokenizer/sentencepiece_check.h"

namespace meshtrain {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& file, bool begin) : begin_(begin) {
    const FileBytes model = read_all(file);
    const std::string_view bytes = model.text();
    const std::string content = describe_text_for_binary(bytes.substr(0, kContentBytes));
    if (!content.empty()) throw InputError(file + ": not a SentencePiece model" + content);
    check_sentencepiece_tables(file, bytes);
    if (const std::string reason = load(bytes); !reason.empty()) {
      throw InputError(file + ": not a SentencePiece model: " + reason);
    }
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsControl(id)) special_tokens_.push_back({processor_.IdToPiece(id), id});
    }
    const auto present = [](int id) { return id < 0 ? std::nullopt : std::optional<int64_t>(id); };
    set_ends(present(processor_.bos_id()), present(processor_.eos_id()));
  }

  void encode(std::string_view text, std::vector<int64_t>& ids, bool add_special) const override {
    std::string replaced;
    if (valid_utf8(text) != text.size()) text = replaced = with_replacements(text);
    if (add_special && begin_ && processor_.bos_id() >= 0) ids.push_back(processor_.bos_id());
    std::vector<int> found;
    const auto encoded = processor_.Encode(text, &found);
    if (!encoded.ok()) throw InputError("SentencePiece cannot encode a text: " + std::string(encoded.message()));
    ids.insert(ids.end(), found.begin(), found.end());
  }

  // Decodes `ids`. The library gives control tokens no text, so both values of `skip_special` mean the same.
  std::string decode(const std::vector<int64_t>& ids, bool) const override {
    std::vector<int> known;
    for (const int64_t id : ids) {
      if (id >= 0 && id < processor_.GetPieceSize()) known.push_back(static_cast<int>(id));
    }
    std::string text;
    const auto decoded = processor_.Decode(known, &text);
    if (!decoded.ok()) throw InputError("SentencePiece cannot decode ids: " + std::string(decoded.message()));
    return text;
  }

  int64_t vocabulary_size() const override { return processor_.GetPieceSize(); }

  std::optional<int64_t> token_id(const std::string& text) const override {
    const int id = processor_.PieceToId(text);
    return processor_.IdToPiece(id) == text ? std::optional<int64_t>(id) : std::nullopt;
  }

  const std::vector<SpecialToken>& special_tokens() const override { return special_tokens_; }

 private:
  /// Loads the model. Returns why the library refuses it; an empty string when it does not.
  std::string load(std::string_view bytes) try {
    const auto loaded = processor_.LoadFromSerializedProto({bytes.data(), bytes.size()});
    return loaded.ok() ? "" : "it is refused: " + std::string(loaded.message());
  } catch (const std::exception& error) {  // of its tries, for pieces that are none
    return error.what();
  }

  sentencepiece::SentencePieceProcessor processor_;
  bool begin_;
  std::vector<SpecialToken> special_tokens_;
};

}  // namespace

std::shared_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& file, bool begin) {
  return std::make_shared<SentencePieceTokenizer>(file, begin);
}

}  // namespace meshtrain

#include "runtime/text/tokenizer/hugging_face.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "mesh/base/unicode/utf8.h"
#include "runtime/text/tokenizer/byte_alphabet.h"

namespace meshtrain {
namespace {

/// The buffers of one encode(), kept for the next.
struct Workspace {
  explicit Workspace(const Bpe& bpe) : words(bpe) {}

  BpeWords words;
  PreTokenizer::Scratch scratch;
  std::vector<AddedTokenFinder::Piece> pieces, inner;
};

/// The workspaces that no thread uses at the moment. A thread first looks where it has returned its last one.
class Workspaces {
 public:
  explicit Workspaces(const Bpe& bpe) : bpe_(bpe) {}
  ~Workspaces() {
    for (std::atomic<Workspace*>& slot : slots_) delete slot.load();
  }

  std::unique_ptr<Workspace> take() {
    for (size_t i = 0, first = first_slot(); i < slots_.size(); ++i) {
      std::atomic<Workspace*>& slot = slots_[(first + i) % slots_.size()];
      if (slot.load(std::memory_order_relaxed) == nullptr) continue;
      if (Workspace* const found = slot.exchange(nullptr)) return std::unique_ptr<Workspace>(found);
    }
    return std::make_unique<Workspace>(bpe_);
  }

  void give_back(std::unique_ptr<Workspace> workspace) {
    for (size_t i = 0, first = first_slot(); i < slots_.size(); ++i) {
      Workspace* free = nullptr;
      if (!slots_[(first + i) % slots_.size()].compare_exchange_strong(free, workspace.get())) continue;
      workspace.release();
      return;
    }
  }

 private:
  static size_t first_slot() {
    static std::atomic<size_t> threads = 0;
    thread_local const size_t mine = threads++;
    return mine;
  }

  const Bpe& bpe_;
  std::array<std::atomic<Workspace*>, 256> slots_{};
};

/// The text of a token.
struct TokenText {
  std::string bytes;  // or the token as it is written, where a decoder has more to do
  bool special = false;
};

AddedTokenFinder finder(const HuggingFaceParts& parts, bool normalized) {
  std::vector<AddedToken> tokens;
  std::copy_if(parts.added.begin(), parts.added.end(), std::back_inserter(tokens),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  return AddedTokenFinder(std::move(tokens));
}

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  explicit HuggingFaceTokenizer(HuggingFaceParts parts)
      : normalizer_(std::move(parts.normalizer)),
        raw_tokens_(finder(parts, false)),
        normalized_tokens_(finder(parts, true)),
        pre_tokenizer_(std::move(parts.steps)),
        bpe_(std::move(parts.bpe)),
        workspaces_(bpe_),
        before_(std::move(parts.before)),
        after_(std::move(parts.after)),
        decoding_(std::move(parts.decoding)),
        ids_(std::move(parts.ids)) {
    const bool decodes_bytes = decoding_.size() == 1 && std::holds_alternative<ByteLevelDecoding>(decoding_.front());
    if (decodes_bytes) decoding_.clear();  // each token has its own bytes
    std::unordered_set<std::string> special;
    for (const AddedToken& token : parts.added) {
      if (token.special) special.insert(token.content);
    }
    const auto show = [&](uint32_t id, const std::string& written) {
      shown_[id] = {decodes_bytes ? bytes_of_token(written).value_or(written) : written, special.contains(written)};
      size_ = std::max(size_, int64_t{id} + 1);
    };
    for (const auto& [text, id] : ids_) show(id, text);
    for (const AddedToken& token : parts.added) {
      show(token.id, token.pattern);
      ids_[token.content] = token.id;
      if (token.special) special_tokens_.push_back({token.content, token.id});
    }
    std::sort(special_tokens_.begin(), special_tokens_.end(),
              [](const SpecialToken& a, const SpecialToken& b) { return a.id < b.id; });
  }

  void encode(std::string_view text, std::vector<int64_t>& ids, bool add_special) const override {
    std::string replaced;
    if (valid_utf8(text) != text.size()) text = replaced = with_replacements(text);
    if (add_special) ids.insert(ids.end(), before_.begin(), before_.end());
    std::unique_ptr<Workspace> workspace = workspaces_.take();
    workspace->pieces.clear();
    raw_tokens_.split(text, workspace->pieces);
    for (const AddedTokenFinder::Piece& piece : workspace->pieces) {
      if (piece.id) {
        ids.push_back(*piece.id);
      } else if (const bool is_first = piece.text.data() == text.data(); normalizer_.surely_keeps(piece.text)) {
        encode_normalized(piece.text, is_first, *workspace, ids);
      } else {
        encode_normalized(normalizer_.apply(piece.text), is_first, *workspace, ids);
      }
    }
    workspaces_.give_back(std::move(workspace));
    if (add_special) ids.insert(ids.end(), after_.begin(), after_.end());
  }

  std::string decode(const std::vector<int64_t>& ids, bool skip_special) const override {
    std::string bytes;
    std::vector<std::string> tokens;
    for (const int64_t id : ids) {
      const auto found = shown_.find(id);
      if (found == shown_.end() || (skip_special && found->second.special)) continue;
      if (decoding_.empty()) {
        bytes += found->second.bytes;
      } else {
        tokens.push_back(found->second.bytes);
      }
    }
    return decoding_.empty() ? bytes : decode_tokens(decoding_, std::move(tokens));
  }

  int64_t vocabulary_size() const override { return size_; }

  std::optional<int64_t> token_id(const std::string& text) const override {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional<int64_t>(found->second);
  }

  const std::vector<SpecialToken>& special_tokens() const override { return special_tokens_; }

 private:
  void encode_normalized(std::string_view text, bool is_first, Workspace& workspace, std::vector<int64_t>& ids) const {
    workspace.inner.clear();
    normalized_tokens_.split(text, workspace.inner);
    for (const AddedTokenFinder::Piece& piece : workspace.inner) {
      if (piece.id) {
        ids.push_back(*piece.id);
        continue;
      }
      pre_tokenizer_.split(piece.text, is_first && piece.text.data() == text.data(), workspace.scratch);
      for (const std::string_view word : workspace.scratch.words) workspace.words.encode(word, ids);
    }
  }

  Normalizer normalizer_;
  AddedTokenFinder raw_tokens_, normalized_tokens_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  mutable Workspaces workspaces_;
  std::vector<int64_t> before_, after_;
  std::vector<DecodingStep> decoding_;  // empty: a token's bytes are what it shows
  std::unordered_map<std::string, uint32_t> ids_;
  std::unordered_map<int64_t, TokenText> shown_;
  int64_t size_ = 0;
  std::vector<SpecialToken> special_tokens_;
};

}  // namespace

std::shared_ptr<Tokenizer> hugging_face_tokenizer(const std::string& file) {
  return std::make_shared<HuggingFaceTokenizer>(read_hugging_face(file));
}

}  // namespace meshtrain

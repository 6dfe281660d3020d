#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace meshtrain {

/// A pair of neighbouring tokens and the token that they merge into. Pairs of lower rank merge first.
struct Merge {
  uint32_t left = 0, right = 0, rank = 0, merged = 0;
};

/// An immutable map from pairs of ids to their merges, with open addressing.
class MergeTable {
 public:
  /// Builds the map. Of equal pairs the last one counts.
  explicit MergeTable(std::span<const Merge> merges);
  /// Returns the merge of two neighbours; nullptr when they do not merge.
  const Merge* find(uint32_t left, uint32_t right) const {
    for (size_t i = slot(left, right);; i = (i + 1) & mask_) {
      const Merge& found = slots_[i];
      if (found.left == left && found.right == right) return &found;
      if (found.left == kFree) return nullptr;
    }
  }

 private:
  static constexpr uint32_t kFree = 0xFFFFFFFF;
  size_t slot(uint32_t left, uint32_t right) const {
    const uint64_t mixed = (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15;
    return static_cast<size_t>(mixed >> 32 ^ mixed >> 16) & mask_;
  }

  std::vector<Merge> slots_;
  size_t mask_ = 0;
};

struct BpeOptions {
  std::unordered_map<std::string, uint32_t> ids;  // by the bytes of a token
  std::vector<Merge> merges;
  std::optional<uint32_t> unknown;  // the id of a byte that is not a token; absent: such a byte is left out
  bool fuse_unknown = false;        // one unknown id stands for several such bytes in a row
  bool whole_words = false;         // a word that is a token is that token ("ignore_merges")
  bool of_characters = false;       // words begin as characters, and `ids` are by texts; else they begin as bytes
  std::vector<std::optional<uint32_t>> fallback;  // [256]: tokens of the bytes of a character that is not one; or empty
};

class BpeWords;

/// Byte pair encoding, of bytes or of characters. Immutable.
class Bpe {
 public:
  explicit Bpe(BpeOptions options);

 private:
  friend class BpeWords;
  BpeOptions options_;
  MergeTable merges_;
  std::vector<std::optional<uint32_t>> byte_ids_;  // [256]; of characters only ASCII counts
  std::unordered_map<uint32_t, uint32_t> character_ids_;
};

/// An encoder of words, with a cache of their ids. For one thread at a time; any number of encoders share a `Bpe`.
class BpeWords {
 public:
  explicit BpeWords(const Bpe& bpe);

  /// Appends the ids of one word. Merges neighbours by rank, and pairs of equal rank from the left, as tokenizers'
  /// Word::merge_all does: a queued pair stays valid as long as the two neighbours at its index still merge into the
  /// same token. O(n log n) in the word's length.
  void encode(std::string_view word, std::vector<int64_t>& ids);

 private:
  static constexpr size_t kWordBytes = 22, kWordIds = 10, kWords = size_t{1} << 15;
  struct CachedWord {              // a cache line
    uint8_t bytes = 0, count = 0;  // bytes is 0: free
    char word[kWordBytes] = {};
    uint32_t ids[kWordIds] = {};
  };
  struct Symbol {
    uint32_t id;
    int64_t previous, next;  // -1: none
    bool alive;
  };
  struct Pair {
    uint32_t rank, merged;
    int64_t at;
  };

  void merge(std::string_view word);
  void begin(std::string_view word);
  void begin_characters(std::string_view word);
  bool add_fallback(std::string_view character);
  void add(uint32_t id);
  void note(int64_t at);

  const Bpe& bpe_;
  std::vector<CachedWord> memory_;
  std::vector<Symbol> symbols_;
  std::vector<Pair> heap_;
};

}  // namespace meshtrain

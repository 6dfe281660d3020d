#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace meshtrain {

/// A token that is searched for in a text before the text is cut into words.
struct AddedToken {
  std::string content;
  std::string pattern;  // the text to search for: content, normalised where `normalized`
  uint32_t id = 0;
  bool single_word = false;                      // found only where no letter or digit touches it
  bool strip_left = false, strip_right = false;  // includes the spaces beside it
  bool normalized = false;                       // searched for in the normalised text; its content is normalised too
  bool special = false;

  bool operator==(const AddedToken&) const = default;
};

/// A finder of added tokens: of those that begin first it takes the longest.
class AddedTokenFinder {
 public:
  struct Piece {
    std::string_view text;
    std::optional<uint32_t> id;  // absent: text between tokens
  };

  /// All patterns must be different.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  /// Appends the pieces of `text`, none of them empty.
  void split(std::string_view text, std::vector<Piece>& pieces) const;

 private:
  struct Match {
    size_t begin = 0, end = 0, token = 0;
  };
  std::optional<Match> find(std::string_view text, size_t from) const;

  static constexpr uint32_t kNone = 0xFFFFFFFF;
  std::vector<AddedToken> tokens_;
  std::array<bool, 256> begins_{};                   // a pattern begins with that byte
  std::unordered_map<uint64_t, uint32_t> children_;  // the edges of a trie: node << 8 | byte
  std::vector<uint32_t> ends_;                       // [node]: the token whose pattern ends there, or kNone
};

}  // namespace meshtrain

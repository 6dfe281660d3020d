#include "runtime/text/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "mesh/base/unicode/unicode.h"
#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

bool ends_with_word(std::string_view text) {
  const char* at = text.data() + text.size();
  return is_word(previous_code_point(at));
}

bool begins_with_word(std::string_view text) {
  const char* at = text.data();
  return is_word(next_code_point(at));
}

// Returns where the spaces at the end of text[0, end) begin.
size_t spaces_before(std::string_view text, size_t end) {
  const char* at = text.data() + end;
  while (at != text.data()) {
    const char* before = at;
    if (!is_space(previous_code_point(before))) break;
    at = before;
  }
  return static_cast<size_t>(at - text.data());
}

size_t spaces_after(std::string_view text, size_t begin) {
  const char *at = text.data() + begin, *end = text.data() + text.size();
  while (at != end) {
    const char* after = at;
    if (!is_space(next_code_point(after))) break;
    at = after;
  }
  return static_cast<size_t>(at - text.data());
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), ends_(1, kNone) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    uint32_t node = 0;
    for (const char c : tokens_[i].pattern) {
      const uint64_t edge = uint64_t{node} << 8 | static_cast<unsigned char>(c);
      const auto [child, fresh] = children_.emplace(edge, static_cast<uint32_t>(ends_.size()));
      if (fresh) ends_.push_back(kNone);
      node = child->second;
    }
    ends_[node] = static_cast<uint32_t>(i);
    begins_[static_cast<unsigned char>(tokens_[i].pattern.front())] = true;
  }
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto child = children_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[at]));
      if (child == children_.end()) break;
      node = child->second;
      if (ends_[node] != kNone) longest = Match{begin, at + 1, ends_[node]};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

void AddedTokenFinder::split(std::string_view text, std::vector<Piece>& pieces) const {
  size_t done = 0;
  size_t from = 0;
  while (const std::optional<Match> match = find(text, from)) {
    from = match->end;
    const AddedToken& token = tokens_[match->token];
    size_t begin = match->begin, end = match->end;
    if (token.single_word && ((begin > 0 && ends_with_word(text.substr(0, begin))) ||
                              (end < text.size() && begins_with_word(text.substr(end))))) {
      continue;
    }
    if (token.strip_left) begin = std::max(spaces_before(text, begin), done);
    if (token.strip_right) end = spaces_after(text, end);
    if (done < begin) pieces.push_back({text.substr(done, begin - done), std::nullopt});
    pieces.push_back({text.substr(match->begin, match->end - match->begin), token.id});
    done = end;
  }
  if (done != text.size()) pieces.push_back({text.substr(done), std::nullopt});
}

}  // namespace meshtrain

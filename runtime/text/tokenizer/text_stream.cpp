#include "runtime/text/tokenizer/text_stream.h"

#include <algorithm>
#include <iterator>

#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

/// The number of tokens that determine how the next one begins: those of a character of single bytes, and the space
/// before it.
constexpr size_t kContext = 8;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Returns true when more bytes can make a character of `bytes`, 1 to 3 of them.
bool begins_character(std::string_view bytes) {
  const unsigned char first = static_cast<unsigned char>(bytes[0]);
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || bytes.size() >= length) return false;
  for (const char second : {'\x80', '\xBF'}) {  // after four of the first bytes the second has half the range
    const std::string full = std::string(bytes) + second + std::string(length - bytes.size() - 1, '\x80');
    if (valid_utf8(full) == length) return true;
  }
  return false;
}

/// Returns the number of bytes at the end of `text` that may become a character.
size_t unfinished(std::string_view text) {
  for (size_t count = std::min<size_t>(3, text.size()); count > 0; --count) {
    if (begins_character(text.substr(text.size() - count))) return count;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, const std::vector<int64_t>& before) : tokenizer_(tokenizer) {
  std::copy_if(before.begin(), before.end(), std::back_inserter(ids_), [&](int64_t id) { return !is_special(id); });
  ids_.erase(ids_.begin(), ids_.end() - static_cast<int64_t>(std::min(kContext, ids_.size())));
  num_decoded_ = ids_.size();
}

std::string TextStream::add(int64_t id) {
  if (is_special(id)) return "";
  ids_.push_back(id);
  return settle(/*last=*/false);
}

// Special tokens have no text, and would take the place of tokens that have some in the context.
bool TextStream::is_special(int64_t id) const {
  const std::vector<SpecialToken>& special = tokenizer_.special_tokens();
  const auto found = std::ranges::lower_bound(special, id, {}, &SpecialToken::id);
  return found != special.end() && found->id == id;
}

std::string TextStream::finish() {
  return settle(/*last=*/true);
}

std::string TextStream::settle(bool last) {
  const std::vector<int64_t> decoded(ids_.begin(), ids_.begin() + static_cast<int64_t>(num_decoded_));
  const std::string before = tokenizer_.decode(decoded, /*skip_special=*/true);
  const std::string all = tokenizer_.decode(ids_, /*skip_special=*/true);
  // Some tokenizers end the text with U+FFFD for bytes that they cannot decode yet.
  if (last || !all.ends_with(kReplacement)) {
    bytes_ += all.size() > before.size() ? all.substr(before.size()) : std::string();
    ids_.erase(ids_.begin(), ids_.end() - static_cast<int64_t>(std::min(kContext, ids_.size())));
    num_decoded_ = ids_.size();
  }
  const size_t kept = last ? 0 : unfinished(bytes_);
  const std::string text = with_replacements(std::string_view(bytes_).substr(0, bytes_.size() - kept));
  bytes_.erase(0, bytes_.size() - kept);
  return text;
}

}  // namespace meshtrain

#include "runtime/text/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "mesh/base/unicode/unicode.h"
#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

std::string_view between(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

std::string_view joined(std::string_view first, std::string_view last) {
  return between(first.data(), last.data() + last.size());
}

}  // namespace

void PreTokenizer::split(std::string_view text, bool is_first, Scratch& scratch) const {
  scratch.beginning = is_first ? text.data() : nullptr;
  scratch.words.clear();
  scratch.prefixed.clear();
  if (!text.empty()) scratch.words.push_back(text);
  for (const PreTokenizerStep& step : steps_) {
    scratch.pieces.swap(scratch.words);
    scratch.words.clear();
    for (const std::string_view piece : scratch.pieces) {
      std::visit([&](const auto& kind) { cut(kind, piece, scratch); }, step);
    }
  }
}

void PreTokenizer::cut(const SplitStep& step, std::string_view text, Scratch& scratch) {
  scratch.spans.clear();
  const char* before = text.data();
  for (size_t from = 0; from < text.size();) {
    const std::string_view match = step.pattern.find(text, from, scratch.alternatives);
    if (match.data() != before) scratch.spans.push_back({between(before, match.data()), step.invert});
    if (match.empty()) break;
    scratch.spans.push_back({match, !step.invert});
    before = match.data() + match.size();
    from = static_cast<size_t>(before - text.data());
  }
  keep(step.behavior, scratch);
}

template <class TakeMatch>
void PreTokenizer::cut_characters(const TakeMatch& take_match, std::string_view text, Scratch& scratch) {
  scratch.spans.clear();
  const char* const end = text.data() + text.size();
  const char* before = text.data();
  for (const char* at = before; at != end;) {
    const char* const begin = at;
    if (!take_match(at)) continue;
    if (before != begin) scratch.spans.push_back({between(before, begin), false});
    scratch.spans.push_back({between(begin, at), true});
    before = at;
  }
  if (before != end) scratch.spans.push_back({between(before, end), false});
}

void PreTokenizer::cut(const DigitsStep& step, std::string_view text, Scratch& scratch) {
  const auto take_digit = [](const char*& at) {
    const auto ascii = static_cast<unsigned char>(*at);
    return ascii < 0x80 ? (++at, ascii >= '0' && ascii <= '9') : is_numeric(next_code_point(at));
  };
  cut_characters(take_digit, text, scratch);
  keep(step.individual ? SplitBehavior::Isolated : SplitBehavior::Contiguous, scratch);
}

void PreTokenizer::cut(const PrefixSpaceStep&, std::string_view text, Scratch& scratch) {
  if (text.front() == ' ') return scratch.words.push_back(text);
  scratch.words.push_back(scratch.prefixed.emplace_back(' ' + std::string(text)));
}

void PreTokenizer::cut(const CharactersStep& step, std::string_view text, Scratch& scratch) {
  cut_characters([&](const char*& at) { return step.is_match(next_code_point(at)); }, text, scratch);
  keep(step.behavior, scratch);
}

void PreTokenizer::cut(const WordsStep&, std::string_view text, Scratch& scratch) {
  enum class Kind { Space, Word, Other };
  Kind last = Kind::Space;
  const char* begin = text.data();
  const char* const end = text.data() + text.size();
  for (const char* at = begin; at != end;) {
    const char* const here = at;
    const uint32_t c = next_code_point(at);
    const Kind kind = is_word(c) ? Kind::Word : is_space(c) ? Kind::Space : Kind::Other;
    if (kind == last) continue;
    if (last != Kind::Space) scratch.words.push_back(between(begin, here));
    begin = here;
    last = kind;
  }
  if (last != Kind::Space) scratch.words.push_back(between(begin, end));
}

void PreTokenizer::cut(const MetaspaceStep& step, std::string_view text, Scratch& scratch) {
  std::string& replaced = scratch.prefixed.emplace_back();
  for (const char c : text) {
    if (c == ' ') {
      replaced += step.replacement;
    } else {
      replaced += c;
    }
  }
  const bool is_asked = step.prepend == MetaspaceStep::Prepend::Always ||
                        (step.prepend == MetaspaceStep::Prepend::First && text.data() == scratch.beginning);
  if (is_asked && !replaced.starts_with(step.replacement)) replaced.insert(0, step.replacement);
  const std::string_view all = replaced;
  if (!step.split) return scratch.words.push_back(all);
  for (size_t begin = 0; begin < all.size();) {
    const size_t from =
        all.compare(begin, step.replacement.size(), step.replacement) == 0 ? step.replacement.size() : 1;
    const size_t end = std::min(all.find(step.replacement, begin + from), all.size());
    scratch.words.push_back(all.substr(begin, end - begin));
    begin = end;
  }
}

// Turns the spans, which follow each other without gaps, into words.
void PreTokenizer::keep(SplitBehavior behavior, Scratch& scratch) {
  const std::vector<Scratch::Span>& spans = scratch.spans;
  std::vector<std::string_view>& words = scratch.words;
  const size_t first = words.size();
  bool previous = false;  // the previous span was a match
  switch (behavior) {
    case SplitBehavior::Isolated:
      for (const Scratch::Span& span : spans) words.push_back(span.text);
      return;
    case SplitBehavior::Removed:
      for (const Scratch::Span& span : spans) {
        if (!span.match) words.push_back(span.text);
      }
      return;
    case SplitBehavior::Contiguous:
    case SplitBehavior::MergedWithPrevious:
      for (const Scratch::Span& span : spans) {
        const bool merged = behavior == SplitBehavior::Contiguous ? span.match == previous : span.match && !previous;
        if (merged && words.size() > first) {
          words.back() = joined(words.back(), span.text);
        } else {
          words.push_back(span.text);
        }
        previous = span.match;
      }
      return;
    case SplitBehavior::MergedWithNext:
      for (size_t i = spans.size(); i-- > 0;) {
        if (spans[i].match && !previous && words.size() > first) {
          words.back() = joined(spans[i].text, words.back());
        } else {
          words.push_back(spans[i].text);
        }
        previous = spans[i].match;
      }
      std::reverse(words.begin() + static_cast<std::ptrdiff_t>(first), words.end());
      return;
  }
}

}  // namespace meshtrain

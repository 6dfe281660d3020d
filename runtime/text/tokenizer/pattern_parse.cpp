#include "runtime/text/tokenizer/pattern_parse.h"

#include <algorithm>
#include <string>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/unicode/unicode.h"
#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

constexpr int kDeepestGroup = 50;  // groups within groups
constexpr uint32_t kMostRepeats = 1000;

class Parser {
 public:
  Parser(std::string_view text, std::vector<CodePointSet>& sets) : text_(text), sets_(sets) {}

  PatternNode parse() {
    PatternNode node = choice(0);
    if (!done()) fail("a ) that closes nothing");
    return node;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError("the regular expression " + std::string(text_) + " has " + what + " at byte " +
                     std::to_string(at_));
  }

  bool done() const { return at_ == text_.size(); }
  bool next_is(std::string_view part) const { return text_.substr(at_).starts_with(part); }
  bool take(std::string_view part) {
    if (!next_is(part)) return false;
    at_ += part.size();
    return true;
  }
  uint32_t take_code_point() {
    if (done()) fail("an unexpected end");
    const char *begin = text_.data() + at_, *end = begin;
    const uint32_t c = next_code_point(end);
    at_ += static_cast<size_t>(end - begin);
    return c;
  }

  PatternNode choice(int depth) {
    if (depth > kDeepestGroup) fail("too many groups within groups");
    PatternNode node{.kind = PatternNode::Kind::Choice};
    do node.children.push_back(sequence(depth));
    while (take("|"));
    return node.children.size() == 1 ? PatternNode(std::move(node.children[0])) : node;
  }

  PatternNode sequence(int depth) {
    PatternNode node{.kind = PatternNode::Kind::Sequence};
    uint32_t before = 0;
    while (!done() && !next_is("|") && !next_is(")")) {
      node.children.push_back(repeated(depth));
      if (ignore_case_) refuse_folded_pair(before, last_letter_);
      before = last_letter_;
    }
    return node;
  }

  PatternNode repeated(int depth) {
    last_letter_ = 0;
    PatternNode node = atom(depth);
    for (int quantifiers = 0;; ++quantifiers) {
      uint32_t min = 0, max = 0;
      bool counted = false;
      if (take("?")) {
        max = 1;
      } else if (take("*")) {
        max = kEndlessRepeats;
      } else if (take("+")) {
        min = 1, max = kEndlessRepeats;
      } else if (next_is("{")) {
        counted = true;
        counts(min, max);
      } else {
        return node;
      }
      last_letter_ = 0;
      if (quantifiers > 0 || (counted && (next_is("?") || next_is("+")))) fail("a repetition of a repetition");
      if (node.kind == PatternNode::Kind::Ahead) fail("a repeated lookahead");
      if (can_be_empty(node)) fail("a repetition of a part that can be empty");
      PatternNode repeat{.kind = PatternNode::Kind::Repeat, .min = min, .max = max};
      if (!counted && take("?")) repeat.greed = PatternGreed::Lazy;
      if (!counted && take("+")) repeat.greed = PatternGreed::Possessive;
      repeat.children.push_back(std::move(node));
      node = std::move(repeat);
    }
  }

  uint32_t number() {
    uint32_t value = 0;
    while (!done() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + static_cast<uint32_t>(text_[at_++] - '0');
      if (value > kMostRepeats) fail("a count above " + std::to_string(kMostRepeats));
    }
    return value;
  }

  void counts(uint32_t& min, uint32_t& max) {
    take("{");
    if (done() || text_[at_] < '0' || text_[at_] > '9') fail("a { without a count");
    min = max = number();
    if (take(",")) max = next_is("}") ? kEndlessRepeats : number();
    if (!take("}")) fail("a { without }");
    if (max < min) fail("a count whose maximum is below its minimum");
    if (max == 0) fail("a count of 0");
  }

  PatternNode atom(int depth) {
    if (take("(")) return group(depth);
    if (take("[")) return set_node(bracket());
    if (next_is("^") || next_is("$")) fail("an anchor, which is not supported,");
    if (next_is("*") || next_is("+") || next_is("?") || next_is("{")) fail("a repetition of nothing");
    CodePointSet set;
    if (take(".")) {
      set.add('\n', '\n');
      set.complement();
    } else if (take("\\")) {
      if (const uint32_t c = escape(set); c != kNoCodePoint) add_letter(c, set);
    } else {
      add_letter(take_code_point(), set);
    }
    return set_node(std::move(set));
  }

  PatternNode group(int depth) {
    const bool outer = ignore_case_;
    PatternNode node;
    if (take("?i:")) {
      ignore_case_ = true;
      node = choice(depth + 1);
    } else if (next_is("?=") || next_is("?!")) {
      node = {.kind = PatternNode::Kind::Ahead, .negated = next_is("?!")};
      at_ += 2;
      node.children.push_back(choice(depth + 1));
    } else {
      if (next_is("?") && !take("?:")) {
        fail("a group other than (...), (?:...), (?i:...), (?=...) and (?!...)");
      }
      node = choice(depth + 1);
    }
    if (!take(")")) fail("a ( without )");
    ignore_case_ = outer;
    return node;
  }

  CodePointSet bracket() {
    CodePointSet set;
    const bool negated = take("^");
    if (next_is("]")) fail("an empty class, or one that begins with ]");
    while (!take("]")) {
      if (next_is("[") || next_is("&&")) fail("a class within a class, or &&, which are not supported,");
      uint32_t first = kNoCodePoint;
      if (take("\\")) {
        first = escape(set);
      } else {
        first = take_code_point();
      }
      const bool range = next_is("-") && !next_is("-]");
      if (!range) {
        if (first != kNoCodePoint) add_letter(first, set);
        continue;
      }
      take("-");
      CodePointSet nothing;
      const uint32_t last = take("\\") ? escape(nothing) : take_code_point();
      if (first == kNoCodePoint || last == kNoCodePoint || last < first) fail("a range of no characters");
      if (ignore_case_) fail("a range whose case is ignored, which is not supported,");
      set.add(first, last);
    }
    if (negated) set.complement();
    return set;
  }

  // Reads what follows a backslash. Returns its code point, or kNoCodePoint for a set, which is added to `set`.
  uint32_t escape(CodePointSet& set) {
    const uint32_t c = take_code_point();
    switch (c) {
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'x':
        return hexadecimal();
      case 's':
      case 'S': {
        CodePointSet spaces;
        spaces.add_spaces();
        if (c == 'S') spaces.complement();
        set.add(spaces);
        return kNoCodePoint;
      }
      case 'd':
      case 'D':
        return add_categories("Nd", c == 'D', set);
      case 'p':
      case 'P': {
        if (!take("{")) fail("a \\p without {");
        const bool caret = take("^");
        const size_t end = text_.find('}', at_);
        if (end == std::string_view::npos) fail("a \\p{ without }");
        const std::string_view name = text_.substr(at_, end - at_);
        if (categories_named(name) == 0) {
          fail("the property \"" + std::string(name) + "\", which is not the short name of a general category,");
        }
        at_ = end + 1;
        return add_categories(name, (c == 'P') != caret, set);
      }
      default:
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
          fail("the escape \\" + std::string(1, static_cast<char>(c)) + ", which is not supported,");
        }
        return c;
    }
  }

  uint32_t add_categories(std::string_view name, bool negated, CodePointSet& set) {
    constexpr CategoryMask kAll = (CategoryMask{1} << kCategories) - 1;
    const CategoryMask mask = categories_named(name);
    set.add(negated ? kAll & ~mask : mask);
    return kNoCodePoint;
  }

  uint32_t hexadecimal() {
    const bool braced = take("{");
    uint32_t value = 0;
    size_t digits = 0;
    for (; !done() && digits < (braced ? 6 : 2); ++digits, ++at_) {
      const char c = text_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    const bool closed = !braced || take("}");
    const bool code_point = value < kCodePoints && (value < 0xD800 || value > 0xDFFF) && (braced || value < 0x80);
    if (digits == 0 || !closed || !code_point) fail("a \\x that is not a character");
    return value;
  }

  void add_letter(uint32_t c, CodePointSet& set) {
    set.add(c, c);
    last_letter_ = c;
    if (!ignore_case_) return;
    if (c >= 0x80) fail("a letter beyond ASCII whose case is ignored, which is not supported,");
    const uint32_t lower = c | 0x20;
    if (lower < 'a' || lower > 'z') return;
    set.add(lower, lower);
    set.add(lower ^ 0x20, lower ^ 0x20);
    if (lower == 's') set.add(0x17F, 0x17F);    // long s
    if (lower == 'k') set.add(0x212A, 0x212A);  // Kelvin
    last_letter_ = lower;
  }

  // Refuses two letters that Oniguruma also matches with a single character when case is ignored: ss with the sharp s,
  // and ligatures.
  void refuse_folded_pair(uint32_t first, uint32_t second) const {
    const std::string pair = {static_cast<char>(first), static_cast<char>(second)};
    for (const char* folded : {"ss", "st", "ff", "fi", "fl"}) {
      if (pair == folded) fail("the letters " + pair + " whose case is ignored, which is not supported,");
    }
  }

  PatternNode set_node(CodePointSet set) {
    const auto found = std::find(sets_.begin(), sets_.end(), set);
    const auto index = static_cast<int32_t>(found - sets_.begin());
    if (found == sets_.end()) {
      if (sets_.size() == kMostPatternSets) fail("more different classes than " + std::to_string(kMostPatternSets));
      sets_.push_back(std::move(set));
    }
    return {.kind = PatternNode::Kind::Set, .set = index};
  }

  static constexpr uint32_t kNoCodePoint = kCodePoints;

  std::string_view text_;
  std::vector<CodePointSet>& sets_;
  size_t at_ = 0;
  bool ignore_case_ = false;
  uint32_t last_letter_ = 0;
};

}  // namespace

bool can_be_empty(const PatternNode& node) {
  const auto empty = [](const PatternNode& child) { return can_be_empty(child); };
  switch (node.kind) {
    case PatternNode::Kind::Set:
      return false;
    case PatternNode::Kind::Sequence:
      return std::all_of(node.children.begin(), node.children.end(), empty);
    case PatternNode::Kind::Choice:
      return std::any_of(node.children.begin(), node.children.end(), empty);
    case PatternNode::Kind::Repeat:
      return node.min == 0 || can_be_empty(node.children[0]);
    default:
      return true;
  }
}

PatternNode parse_pattern(std::string_view expression, std::vector<CodePointSet>& sets) {
  return Parser(expression, sets).parse();
}

}  // namespace meshtrain

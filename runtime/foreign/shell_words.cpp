#include "runtime/foreign/shell_words.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <string_view>

#include "mesh/error.h"

namespace meshtrain {
namespace {

bool is_of_name(char character) {
  return std::isalnum(static_cast<unsigned char>(character)) != 0 || character == '_';
}

/// Returns the position behind the bracket that closes the one at `at`.
size_t behind_brackets(const std::string& text, size_t at, char open, char close) {
  int depth = 0;
  for (; at < text.size(); ++at) {
    if (text[at] == open) ++depth;
    if (text[at] == close && --depth == 0) return at + 1;
  }
  return text.size();
}

/// Returns the position behind what a $, a quote or a backslash at `at` begins.
size_t behind_part(const std::string& text, size_t at) {
  const char first = text[at], next = at + 1 < text.size() ? text[at + 1] : '\0';
  if (first == '\\') return std::min(at + 2, text.size());
  if (first == '\'' || first == '`') return std::min(text.find(first, at + 1), text.size() - 1) + 1;
  if (first == '$' && next == '(') return behind_brackets(text, at + 1, '(', ')');
  if (first == '$' && next == '{') return behind_brackets(text, at + 1, '{', '}');
  if (first != '"') return at + 1;
  for (++at; at < text.size() && text[at] != '"';) at = text[at] == '\'' ? at + 1 : behind_part(text, at);
  return std::min(at + 1, text.size());
}

/// The value of an expression of whole numbers, + - * / % and brackets; none for another.
class Arithmetic {
 public:
  explicit Arithmetic(const std::string& text) {
    std::ranges::copy_if(text, std::back_inserter(text_), [](unsigned char c) { return std::isspace(c) == 0; });
  }

  std::optional<int64_t> value() {
    const int64_t sum = terms();
    return is_good_ && at_ == text_.size() ? std::optional(sum) : std::nullopt;
  }

 private:
  bool accept(char wanted) {
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  int64_t terms() {
    int64_t sum = factors();
    while (is_good_) {
      if (accept('+')) {
        sum += factors();
      } else if (accept('-')) {
        sum -= factors();
      } else {
        break;
      }
    }
    return sum;
  }

  int64_t factors() {
    int64_t product = atom();
    while (is_good_) {
      const char sign = at_ < text_.size() ? text_[at_] : '\0';
      if (sign != '*' && sign != '/' && sign != '%') break;
      ++at_;
      const int64_t other = atom();
      if (sign != '*' && other == 0) is_good_ = false;
      if (!is_good_) break;
      product = sign == '*' ? product * other : sign == '/' ? product / other : product % other;
      is_good_ = std::abs(product) < kMost;
    }
    return product;
  }

  int64_t atom() {
    if (++depth_ > 100) is_good_ = false;
    int64_t number = 0;
    if (is_good_ && accept('(')) {
      number = terms();
      is_good_ = is_good_ && accept(')');
    } else {
      const size_t begin = at_;
      for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0 && number < kMost; ++at_) {
        number = 10 * number + (text_[at_] - '0');
      }
      is_good_ = is_good_ && at_ > begin && number < kMost;
    }
    --depth_;
    return number;
  }

  static constexpr int64_t kMost = int64_t{1} << 31;
  std::string text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool is_good_ = true;
};

}  // namespace

std::vector<ShellToken> shell_tokens(const std::string& text) {
  std::vector<ShellToken> tokens;
  std::string word;
  int line = 1;
  const auto end_word = [&] {
    if (!word.empty()) tokens.push_back({std::exchange(word, {}), false, line});
  };
  for (size_t at = 0; at < text.size();) {
    const char character = text[at];
    if (character == '\\' && at + 1 < text.size() && text[at + 1] == '\n') {
      ++line;
      at += 2;
    } else if (character == '#' && word.empty()) {
      at = std::min(text.find('\n', at), text.size());
    } else if (character == ' ' || character == '\t' || character == '\r') {
      end_word();
      ++at;
    } else if (std::string_view("\n;&|<>()").find(character) != std::string_view::npos) {
      const bool redirects = character == '<' || character == '>';
      if (redirects && word.find_first_not_of("0123456789") == std::string::npos) word.clear();  // 2>
      end_word();
      size_t end = at + 1;
      while (end < text.size() && (text[end] == character || (redirects && text[end] == '&')) && character != '\n' &&
             character != '(' && character != ')') {
        ++end;
      }
      tokens.push_back({text.substr(at, end - at), true, line});
      if (character == '\n') ++line;
      at = end;
    } else {
      const size_t end = behind_part(text, at);
      for (; at < end; ++at) {
        if (text.compare(at, 2, "\\\n") == 0) {
          ++line, ++at;
          continue;
        }
        if (text[at] == '\n') ++line;
        word += text[at];
      }
    }
  }
  end_word();
  tokens.push_back({"\n", true, line});
  return tokens;
}

std::vector<std::string> split_at_blanks(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; (at = text.find_first_not_of(" \t\n", at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(" \t\n", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

namespace {

/// A word on its way to the words that it becomes.
class Expansion {
 public:
  explicit Expansion(const std::map<std::string, std::vector<std::string>>& values, int depth = 0)
      : values_(values), depth_(depth) {}

  std::vector<std::string> of(const std::string& word) {
    read(word, false);
    end_word();
    return std::move(words_);
  }

 private:
  void read(const std::string& text, bool is_quoted) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = behind_part(text, at);
      const std::string part = text.substr(at, end - at);
      at = end;
      if (part[0] == '\'' && !is_quoted) {
        add(part.substr(1, part.size() - 2));
      } else if (part[0] == '"' && !is_quoted) {
        add("");
        read(part.substr(1, part.size() - 2), true);
      } else if (part[0] == '\\' && part.size() > 1) {
        add(part.substr(1));
      } else if (part[0] == '$') {
        at += read_variable(part, text.substr(at), is_quoted);
      } else {
        add(part);
      }
    }
  }

  /// Reads `part`, "${...}", "$(...)", or "$" before `rest`. Returns how much of `rest` belongs to it.
  size_t read_variable(const std::string& part, const std::string& rest, bool is_quoted) {
    if (part.starts_with("$((") && part.ends_with("))")) {
      const std::string inner = Expansion(values_, depth_ + 1).plain(part.substr(3, part.size() - 5));
      const auto value = Arithmetic(inner).value();
      add(value ? std::to_string(*value) : part);
    } else if (part.starts_with("${")) {
      read_braces(part, is_quoted);
    } else if (part == "$") {
      size_t length = 0;
      while (length < rest.size() && is_of_name(rest[length])) ++length;
      const auto known = values_.find(rest.substr(0, length));
      if (known == values_.end()) {
        add("$" + rest.substr(0, length));
      } else {
        add_values(known->second, is_quoted, false);
      }
      return length;
    } else {
      add(part);
    }
    return 0;
  }

  /// Reads ${NAME}, ${NAME[@]} and ${NAME:-default}.
  void read_braces(const std::string& part, bool is_quoted) {
    const std::string inner = part.substr(2, part.size() - 3);
    size_t length = 0;
    while (length < inner.size() && is_of_name(inner[length])) ++length;
    const std::string after = inner.substr(length);
    const bool is_all = after == "[@]" || after == "[*]";
    const size_t sign = after.starts_with(":-") || after.starts_with(":=") ? 2 : after.starts_with("-") ? 1 : 0;
    const auto known = values_.find(inner.substr(0, length));
    const bool is_known = known != values_.end() && (sign != 2 || known->second != std::vector<std::string>{""});
    if (is_known && (after.empty() || is_all || sign > 0)) {
      add_values(known->second, is_quoted, is_all);
    } else if (sign > 0 && depth_ < kDeepest) {
      ++depth_;
      read(after.substr(sign), is_quoted);
      --depth_;
    } else if (!is_all) {
      add(part);
    }
  }

  /// Returns `text` with its variables replaced, whatever blanks it has. Names without a $ are variables too.
  std::string plain(const std::string& text) {
    std::string named;
    for (size_t at = 0; at < text.size(); ++at) {
      const bool begins = (at == 0 || (!is_of_name(text[at - 1]) && text[at - 1] != '$' && text[at - 1] != '{')) &&
                          is_of_name(text[at]) && std::isdigit(static_cast<unsigned char>(text[at])) == 0;
      named += (begins ? "$" : "") + std::string(1, text[at]);
    }
    if (depth_ < kDeepest) read(named, true);
    end_word();
    return words_.empty() ? "" : words_.front();
  }

  void add_values(const std::vector<std::string>& values, bool is_quoted, bool is_all) {
    for (size_t i = 0; i < values.size() && (i == 0 || is_all); ++i) {
      if (i > 0) end_word();
      if (is_quoted) {
        add(values[i]);
        continue;
      }
      const std::vector<std::string> words = split_at_blanks(values[i]);
      for (size_t word = 0; word < words.size(); ++word) {
        if (word > 0) end_word();
        add(words[word]);
      }
    }
  }

  void add(const std::string& text) {
    length_ += text.size();
    if (length_ > kLongest) throw InputError("a variable of the script becomes longer than 1 MiB: write it out");
    word_ = word_.value_or("") + text;
  }

  void end_word() {
    if (word_) words_.push_back(*std::exchange(word_, {}));
  }

  static constexpr int kDeepest = 20;
  static constexpr size_t kLongest = 1 << 20;
  const std::map<std::string, std::vector<std::string>>& values_;
  int depth_;
  size_t length_ = 0;
  std::vector<std::string> words_;
  std::optional<std::string> word_;  ///< none: no word has begun
};

}  // namespace

void ShellVariables::append(const std::string& name, const std::vector<std::string>& elements, bool as_text) {
  std::vector<std::string>& values = values_[name];
  if (as_text && !values.empty()) {
    for (const std::string& element : elements) values.front() += element;
  } else {
    values.insert(values.end(), elements.begin(), elements.end());
  }
}

std::vector<std::string> ShellVariables::expand(const std::string& word) const {
  return Expansion(values_).of(word);
}

}  // namespace meshtrain

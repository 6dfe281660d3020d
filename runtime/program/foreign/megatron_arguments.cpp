#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mesh/base/error.h"
#include "runtime/program/foreign/foreign_config.h"

namespace meshtrain {
namespace {

struct Word {
  std::string text;
  YamlLocation location;
};

/// The words of a text, separated by blanks. Quotes keep a word together, a backslash makes the next character literal,
/// and # at the beginning of a word begins a comment. Text that needs a shell is refused.
class Words {
 public:
  Words(const std::string& text, const std::shared_ptr<const YamlSource>& source) : text_(text), source_(source) {}

  /// Returns the next word; none at the end.
  std::optional<Word> next() {
    for (; at_ < text_.size(); ++at_) {
      if (text_.compare(at_, 2, "\\\n") == 0) {
        ++at_;
        begin_line();
      } else if (text_[at_] == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size()) - 1;
      } else if (!is_blank(text_[at_])) {
        break;
      } else if (text_[at_] == '\n') {
        begin_line();
      }
    }
    if (at_ >= text_.size()) return std::nullopt;
    Word word{"", {source_, line_, static_cast<int>(at_ - line_begin_) + 1}};
    char quote = 0;
    for (; at_ < text_.size() && (quote != 0 || !is_blank(text_[at_])); ++at_) {
      const char c = text_[at_];
      if (c == '\n') begin_line();
      if (quote != '\'' && c == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        if (text_[at_] == '\n') {
          begin_line();
        } else {
          word.text += text_[at_];
        }
      } else if (quote == c || (quote == 0 && (c == '\'' || c == '"'))) {
        quote = quote == c ? '\0' : c;
      } else {
        const std::string of_shell = quote == 0 ? "$`()<>|;&" : "$`";
        if (quote != '\'' && of_shell.find(c) != std::string::npos) refuse(word);
        word.text += c;
      }
    }
    if (quote != 0) throw InputError(word.location.text() + ": a quotation mark is not closed");
    return word;
  }

 private:
  static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

  void begin_line() {
    ++line_;
    line_begin_ = at_ + 1;
  }

  [[noreturn]] void refuse(const Word& word) const {
    const size_t begin = at_ - word.text.size();
    throw InputError(word.location.text() + ": " +
                     quoted(text_.substr(begin, text_.find_first_of(" \t\r\n\"'", at_) - begin)) +
                     " needs a shell, and scripts are not read: give a file with the arguments that the script passes "
                     "to Megatron-LM; docs/recipe.md has the command that writes them");
  }

  const std::string& text_;
  std::shared_ptr<const YamlSource> source_;
  size_t at_ = 0, line_begin_ = 0;
  int line_ = 1;
};

bool is_argument(const std::string& word) {
  return word.size() > 2 && word.starts_with("--");
}

YamlValue scalar(std::string text, const YamlLocation& location) {
  YamlValue value;
  value.kind = YamlValue::Kind::Scalar;
  value.location = location;
  value.text = std::move(text);
  return value;
}

}  // namespace

YamlValue parse_arguments(const std::string& text, const std::shared_ptr<const YamlSource>& source) {
  std::vector<Word> words;
  Words reader(text, source);
  bool has_program = false;
  while (std::optional<Word> word = reader.next()) {
    const bool is_program = !has_program && word->text.ends_with(".py");
    words.push_back(std::move(*word));
    if (!is_program) continue;
    has_program = true;
    words.clear();  // the launcher and its options
  }
  YamlValue arguments;
  arguments.kind = YamlValue::Kind::Map;
  arguments.location = {source};
  for (size_t i = 0; i < words.size();) {
    const Word& word = words[i++];
    if (!is_argument(word.text)) continue;
    YamlValue list;
    list.kind = YamlValue::Kind::List;
    list.location = word.location;
    const size_t equals = std::min(word.text.find('='), word.text.size());
    if (equals < word.text.size()) list.items.push_back(scalar(word.text.substr(equals + 1), word.location));
    for (; i < words.size() && !is_argument(words[i].text); ++i) {
      list.items.push_back(scalar(words[i].text, words[i].location));
    }
    YamlValue value = list.items.empty()       ? scalar("true", word.location)
                      : list.items.size() == 1 ? list.items.front()
                                               : std::move(list);
    std::string name = word.text.substr(0, equals);
    std::ranges::replace(name, '_', '-');
    if (YamlValue* earlier = arguments.find(name)) {
      *earlier = std::move(value);
    } else {
      arguments.entries.push_back({std::move(name), word.location, std::move(value)});
    }
  }
  return arguments;
}

}  // namespace meshtrain

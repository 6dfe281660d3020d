#include "runtime/foreign/shell_script.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "mesh/error.h"
#include "runtime/foreign/shell_words.h"

namespace meshtrain {
namespace {

using Words = std::vector<std::string>;
using Tokens = std::vector<ShellToken>;

bool is_argument(const std::string& word) {
  return word.starts_with("--") && word.size() > 2;
}

bool is_program(const std::string& word) {
  return word.ends_with(".py") && !word.starts_with("-");
}

/// NAME=VALUE, or NAME+=VALUE.
struct Assignment {
  std::string name, value;
  bool is_added;
};

std::optional<Assignment> assignment_of(const std::string& word) {
  static const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return std::nullopt;
  const bool is_added = word[equals - 1] == '+';
  const std::string name = word.substr(0, equals - (is_added ? 1 : 0));
  if (name.empty() || letters.find(name[0]) == std::string::npos ||
      name.find_first_not_of(letters + "0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return Assignment{name, word.substr(equals + 1), is_added};
}

/// An if of the script that has begun.
struct Branch {
  bool is_taken;                      ///< its lines count now
  bool had_taken;                     ///< one of its parts was taken
  std::vector<size_t> untested = {};  ///< the conditions of its parts that are not known, by their number
};

/// A reader of a script that follows its variables and arguments.
class Script {
 public:
  explicit Script(const std::string& text) : tokens_(shell_tokens(text)) {}

  void run() {
    while (at_ < tokens_.size()) {
      Tokens command = next_command();
      drop_word(command, {"then", "do", "else", "{", "time", "exec"});
      if (command.empty()) continue;
      if (const std::string word = command.front().text; word == "if" || word == "elif") {
        begin_branch(word == "if");
      } else if (word == "fi") {
        if (!branches_.empty()) branches_.pop_back();
      } else if (word == "case") {
        skip_case(command);
      } else if (is_active() && word != "for" && word != "while" && word != "until") {
        execute(command);
      }
    }
  }

  /// Returns the arguments of the program, or else those of variables and lines.
  Words arguments() const { return arguments_ ? *arguments_ : loose_; }
  std::vector<UntestedCondition> untested;

 private:
  bool is_active() const {
    return std::ranges::all_of(branches_, [](const Branch& branch) { return branch.is_taken; });
  }

  /// Removes a word of `words` at the beginning of a command; an else turns the branch.
  void drop_word(Tokens& command, const std::set<std::string>& words) {
    while (!command.empty() && words.contains(command.front().text)) {
      if (command.front().text == "else" && !branches_.empty()) {
        branches_.back().is_taken = !branches_.back().had_taken;
        if (branches_.back().is_taken) {
          for (const size_t number : branches_.back().untested) untested[number].took_else = true;
        }
      }
      command.erase(command.begin());
    }
  }

  /// Returns the tokens up to the operator that ends a command, which it skips. Arrays belong to the command; where it
  /// reads from and writes to does not.
  Tokens next_command() {
    Tokens command;
    for (; at_ < tokens_.size(); ++at_) {
      const ShellToken& token = tokens_[at_];
      if (!token.is_operator) {
        command.push_back(token);
      } else if (token.text == "(" && !command.empty() && command.back().text.ends_with('=')) {
        command.push_back(token);
        for (++at_; at_ < tokens_.size() && tokens_[at_].text != ")"; ++at_) {
          if (!tokens_[at_].is_operator) command.push_back(tokens_[at_]);
        }
        command.push_back({")", true, token.line});
      } else if (token.text[0] == '<' || token.text[0] == '>') {
        ++at_;
      } else {
        break;
      }
    }
    ++at_;
    return command;
  }

  void skip_case(const Tokens& command) {
    if (is_active()) untested.push_back({"case (line " + std::to_string(command.front().line) + ")"});
    while (at_ < tokens_.size() && tokens_[at_].text != "esac") ++at_;
    ++at_;
  }

  /// Reads the condition behind if or elif, up to its then.
  void begin_branch(bool is_new) {
    size_t begin = at_;
    while (begin > 0 && tokens_[begin - 1].text != "if" && tokens_[begin - 1].text != "elif") --begin;
    size_t end = begin;
    while (end < tokens_.size() && (tokens_[end].text != "then" || !tokens_[end - 1].is_operator)) ++end;
    at_ = end;
    const Tokens condition(tokens_.begin() + static_cast<std::ptrdiff_t>(begin),
                           tokens_.begin() + static_cast<std::ptrdiff_t>(end));
    if (is_new) branches_.push_back({true, false});
    if (branches_.empty()) return;
    Branch& branch = branches_.back();
    branch.is_taken = true;
    if (!is_active() || branch.had_taken) {
      branch.is_taken = false;
      return;
    }
    const std::optional<bool> holds = value_of(condition);
    if (!holds && !condition.empty()) {
      std::string text;
      for (const ShellToken& token : condition) text += token.text == "\n" || token.text == ";" ? "" : " " + token.text;
      branch.untested.push_back(untested.size());
      untested.push_back({"if" + text + " (line " + std::to_string(condition.front().line) + ")"});
    }
    branch.is_taken = branch.had_taken = holds.value_or(false);
  }

  /// Returns whether comparisons joined by && and || hold; none when one of them is not known.
  std::optional<bool> value_of(const Tokens& condition) const {
    std::optional<bool> value;
    std::string joint;
    Words test;
    for (size_t i = 0; i <= condition.size(); ++i) {
      const bool is_end = i == condition.size() || condition[i].is_operator;
      if (!is_end) test.push_back(condition[i].text);
      if (!is_end || test.empty()) continue;
      const std::optional<bool> holds = value_of_test(std::exchange(test, {}));
      if (!holds) return std::nullopt;
      value = joint == "&&" ? *value && *holds : joint == "||" ? *value || *holds : *holds;
      joint = i == condition.size() ? "" : condition[i].text;
      if (joint != "&&" && joint != "||") return value;
    }
    return value;
  }

  /// Returns whether `[ A = B ]` and the like hold; none for other tests and for texts that are not known.
  std::optional<bool> value_of_test(Words test) const {
    bool is_negated = false;
    if (!test.empty() && (test.front() == "[" || test.front() == "[[" || test.front() == "test")) {
      test.erase(test.begin());
    }
    if (!test.empty() && (test.back() == "]" || test.back() == "]]")) test.pop_back();
    if (!test.empty() && test.front() == "!") {
      is_negated = true;
      test.erase(test.begin());
    }
    const auto value = [&](const std::string& word) -> std::optional<std::string> {
      const std::string text = text_of(word);
      return text.find('$') == std::string::npos ? std::optional(text) : std::nullopt;
    };
    std::optional<bool> holds;
    if (test.size() == 2 && (test[0] == "-n" || test[0] == "-z")) {
      if (const auto text = value(test[1])) holds = text->empty() == (test[0] == "-z");
    } else if (test.size() == 3) {
      const auto left = value(test[0]), right = value(test[2]);
      const std::string sign = test[1];
      if (left && right && (sign == "=" || sign == "==" || sign == "-eq")) holds = *left == *right;
      if (left && right && (sign == "!=" || sign == "-ne")) holds = *left != *right;
    }
    return holds ? std::optional(*holds != is_negated) : std::nullopt;
  }

  void execute(const Tokens& command) {
    static const std::set<std::string> declares = {"export", "readonly", "local", "declare", "typeset"};
    size_t at = 0;
    if (declares.contains(command[0].text)) {
      for (++at; at < command.size() && command[at].text.starts_with('-');) ++at;
    }
    for (; at < command.size(); ++at) {
      const std::optional<Assignment> assignment = assignment_of(command[at].text);
      if (!assignment) break;
      const bool is_array = at + 1 < command.size() && command[at + 1].is_operator;
      Words elements;
      if (is_array) {
        for (at += 2; at < command.size() && !command[at].is_operator; ++at) {
          for (std::string& word : variables_.expand(command[at].text)) elements.push_back(std::move(word));
        }
      } else {
        elements = {text_of(assignment->value)};
      }
      assign(assignment->name, std::move(elements), assignment->is_added, !is_array);
    }
    Words words;
    for (; at < command.size(); ++at) {
      for (const std::string& word : variables_.expand(command[at].text)) {
        const Words parts = split_at_blanks(word);  // sh -c "torchrun ..."
        if (std::ranges::any_of(parts, is_program)) {
          words.insert(words.end(), parts.begin(), parts.end());
        } else {
          words.push_back(word);
        }
      }
    }
    if (!words.empty()) start(words);
  }

  /// Returns a value as one text.
  std::string text_of(const std::string& raw) const {
    std::string text;
    for (const std::string& word : variables_.expand(raw)) text += (text.empty() ? "" : " ") + word;
    return text;
  }

  void assign(const std::string& name, Words elements, bool is_added, bool is_text) {
    Words words = elements;
    if (is_text) words = split_at_blanks(elements.front());
    if (!words.empty() && is_argument(words.front())) loose_.insert(loose_.end(), words.begin(), words.end());
    if (is_added) {
      variables_.append(name, elements, is_text);
    } else {
      variables_.set(name, std::move(elements));
    }
  }

  /// Keeps the arguments of the program with most of them: a script may prepare its data first.
  void start(const Words& words) {
    if (words[0] == "echo" || words[0] == "printf") return;
    const auto program = std::ranges::find_if(words, is_program);
    if (program != words.end()) {
      Words found(program + 1, words.end());
      if (!arguments_ || found.size() > arguments_->size()) arguments_ = std::move(found);
    } else if (is_argument(words[0])) {
      loose_.insert(loose_.end(), words.begin(), words.end());
    }
  }

  Tokens tokens_;
  size_t at_ = 0;
  std::vector<Branch> branches_;
  ShellVariables variables_;
  std::optional<Words> arguments_;
  Words loose_;
};

YamlValue scalar(const std::string& text, const YamlLocation& location) {
  YamlValue value;
  value.kind = YamlValue::Kind::Scalar;
  value.location = location;
  value.text = text;
  return value;
}

}  // namespace

ScriptArguments read_script_arguments(const std::string& text, const std::shared_ptr<const YamlSource>& source) {
  Script script(text);
  try {
    script.run();
  } catch (const InputError& error) {
    throw InputError(source->name + ": " + error.what());
  }
  const YamlLocation location{source};
  ScriptArguments found{{}, std::move(script.untested)};
  found.arguments.kind = YamlValue::Kind::Map;
  found.arguments.location = location;
  const Words words = script.arguments();
  for (size_t i = 0; i < words.size();) {
    const std::string& word = words[i++];
    if (!is_argument(word)) continue;
    const size_t equals = std::min(word.find('='), word.size());
    YamlValue list;
    list.kind = YamlValue::Kind::List;
    list.location = location;
    if (equals < word.size()) list.items.push_back(scalar(word.substr(equals + 1), location));
    for (; i < words.size() && !is_argument(words[i]); ++i) list.items.push_back(scalar(words[i], location));
    YamlValue value = list.items.empty()       ? scalar("true", location)
                      : list.items.size() == 1 ? list.items.front()
                                               : std::move(list);
    std::string name = word.substr(0, equals);
    std::ranges::replace(name, '_', '-');
    if (YamlValue* earlier = found.arguments.find(name)) {
      *earlier = std::move(value);
    } else {
      found.arguments.entries.push_back({std::move(name), location, std::move(value)});
    }
  }
  return found;
}

}  // namespace meshtrain

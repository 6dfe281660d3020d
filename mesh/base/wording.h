#pragma once

#include <map>
#include <string>
#include <vector>

namespace meshtrain {

/// A key of a recipe in a message: "train.micro_batch".
struct Key {
  std::string path;
};

/// A value that a message advises for a key: "train.micro_batch: 2".
struct Setting {
  std::string key, value;
};

/// A command's names for keys of a recipe: {"train.micro_batch", "--micro-batch"}.
using KeyNames = std::map<std::string, std::string>;

/// A text for people that knows which recipe keys it contains, so that a command can print its own options instead.
class Wording {
 public:
  Wording(std::string text) : parts_{{"", std::move(text)}} {}
  Wording(const char* text) : Wording(std::string(text)) {}
  Wording(Key key) : parts_{{std::move(key.path), ""}} {}
  Wording(Setting setting) : parts_{{std::move(setting.key), std::move(setting.value)}} {}

  Wording& operator+=(const Wording& more) {
    parts_.insert(parts_.end(), more.parts_.begin(), more.parts_.end());
    return *this;
  }

  bool empty() const { return text().empty(); }
  /// Returns the text with names for the keys that have one: "set --micro-batch 2" for "set train.micro_batch: 2".
  std::string text(const KeyNames& names = {}) const {
    std::string text;
    for (const auto& [key, rest] : parts_) {
      const auto name = names.find(key);
      const bool is_named = name != names.end();
      text += is_named ? name->second : key;
      if (!key.empty() && !rest.empty()) text += is_named ? " " : ": ";
      text += rest;
    }
    return text;
  }

 private:
  struct Part {
    std::string key, text;  // a text alone, a key alone, or a key and its value
  };

  std::vector<Part> parts_;
};

inline Wording operator+(Wording left, const Wording& right) {
  return left += right;
}

}  // namespace meshtrain

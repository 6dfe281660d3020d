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
  Wording(std::string text);
  Wording(const char* text);
  Wording(Key key);
  Wording(Setting setting);
  // Not inline: messages are made in hundreds of places, each of which would contain this code.
  Wording(const Wording&);
  Wording(Wording&&) noexcept;
  Wording& operator=(const Wording&);
  Wording& operator=(Wording&&) noexcept;
  ~Wording();

  Wording& operator+=(const Wording& more);

  bool empty() const { return text().empty(); }
  /// Returns the text with names for the keys that have one: "set --micro-batch 2" for "set train.micro_batch: 2".
  std::string text(const KeyNames& names = {}) const;

 private:
  struct Part {
    std::string key, text;  // a text alone, a key alone, or a key and its value
  };

  std::vector<Part> parts_;
};

Wording operator+(Wording left, const Wording& right);

}  // namespace meshtrain

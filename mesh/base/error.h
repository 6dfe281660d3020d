#pragma once

#include <stdexcept>
#include <string>

#include "mesh/base/wording.h"

namespace meshtrain {

/// A request that cannot be carried out: a recipe, a mesh, a file. The program ends with status 2. Every other
/// exception is a failure at run time, status 1.
class InputError : public std::runtime_error {
 public:
  explicit InputError(Wording problem);
  /// `key`: the key of the recipe, or its location. The message begins with it: "KEY: PROBLEM".
  InputError(std::string key, Wording problem);
  InputError(const InputError&);
  ~InputError() override;

  /// Returns the key whose value cannot be used; empty when the message does not begin with a key.
  const std::string& key() const { return key_; }
  /// Returns the message without the key.
  const Wording& problem() const { return problem_; }
  /// Returns the message with each key in `names` replaced by the command's name for it.
  std::string text(const KeyNames& names) const;

 private:
  std::string key_;
  Wording problem_;
};

/// The mark of an error whose message begins with the rank that throws it and the rank's coordinate.
class NamesRank {
 public:
  virtual ~NamesRank() = default;
};

template <class Error>
class RankError : public Error, public NamesRank {
 public:
  using Error::Error;
};

}  // namespace meshtrain

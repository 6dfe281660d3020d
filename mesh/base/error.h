#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "mesh/base/wording.h"

namespace meshtrain {

/// A request that cannot be carried out: a recipe, a mesh, a file. The program ends with status 2. Every other
/// exception is a failure at run time, status 1.
class InputError : public std::runtime_error {
 public:
  explicit InputError(Wording problem) : runtime_error(problem.text()), problem_(std::move(problem)) {}
  /// `key`: the key of the recipe, or its location. The message begins with it: "KEY: PROBLEM".
  InputError(std::string key, Wording problem)
      : runtime_error(key + ": " + problem.text()), key_(std::move(key)), problem_(std::move(problem)) {}

  /// Returns the key whose value cannot be used; empty when the message does not begin with a key.
  const std::string& key() const { return key_; }
  /// Returns the message without the key.
  const Wording& problem() const { return problem_; }
  /// Returns the message with each key in `names` replaced by the command's name for it.
  std::string text(const KeyNames& names) const {
    return key_.empty() ? problem_.text(names) : Wording(Key{key_}).text(names) + ": " + problem_.text(names);
  }

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

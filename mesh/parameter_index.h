#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mesh/parameter.h"

namespace meshtrain {

/// An index of all parameters of a model, in the model's order. Each parameter has a number, whether or not this rank
/// holds the parameter. Every rank makes the same index, without memory and without communication. Collectives about
/// parameters have one element or one turn for each number. Their size and count therefore do not depend on the
/// parameters that a rank holds.
class ParameterIndex {
 public:
  struct Entry {
    std::string name;
    std::vector<int64_t> global_shape;
    at::ScalarType dtype;  ///< in which layers compute; shards may have another
    bool trainable;
  };

  ParameterIndex() = default;
  /// `declared`: the parameters of the complete model; they need no storage. Throws std::invalid_argument when two have
  /// the same name.
  explicit ParameterIndex(const std::vector<Parameter*>& declared);

  size_t size() const { return entries_.size(); }
  /// Returns the parameters by number.
  const std::vector<Entry>& entries() const { return entries_; }
  const Entry& operator[](size_t number) const { return entries_[number]; }
  /// Returns the number of the parameter `name`. Throws std::out_of_range when the model has none.
  size_t number(const std::string& name) const;

 private:
  std::vector<Entry> entries_;
  std::map<std::string, size_t> numbers_;
};

}  // namespace meshtrain

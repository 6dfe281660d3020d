#pragma once

#include <stdexcept>

namespace meshtrain::jinja {

/// A reason why a value cannot be computed, without a location: the renderer adds that of the expression.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace meshtrain::jinja

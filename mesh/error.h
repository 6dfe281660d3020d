#pragma once

#include <stdexcept>

namespace meshtrain {

/// What the user asked for cannot be done: a recipe, a mesh, a file. The program ends with status 2.
/// Everything else that is thrown is a failure at run time, status 1.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace meshtrain

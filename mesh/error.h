#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace meshtrain {

/// A request that cannot be carried out: a recipe, a mesh, a file. The program ends with status 2. Every other
/// exception is a failure at run time, status 1.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Returns an error's text for people: LibTorch's without its backtrace; for memory that was refused, how much, and
/// which settings need less.
std::string message_of(const std::exception& error);

}  // namespace meshtrain

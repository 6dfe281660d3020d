#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace meshtrain {

/// What the user asked for cannot be done: a recipe, a mesh, a file. The program ends with status 2.
/// Everything else that is thrown is a failure at run time, status 1.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What an error says to people: LibTorch's without its backtrace; of memory that was refused, how much and what
/// needs less.
std::string message_of(const std::exception& error);

}  // namespace meshtrain

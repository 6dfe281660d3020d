#pragma once

#include <exception>
#include <string>

namespace meshtrain {

/// What is said of an error and the exit status that it asks for: 2 for the user's mistakes, 1 for all others.
struct Failure {
  std::string message;  ///< one line
  int status = 1;
};

/// `place`: "rank 3", named for errors that are not the user's; empty: none.
Failure describe_failure(const std::exception& error, const std::string& place);

/// "meshtrain: MESSAGE" on stderr.
void print_failure(const Failure& failure);

}  // namespace meshtrain

#pragma once

#include <exception>
#include <string>

#include "mesh/group.h"

namespace meshtrain {

/// What is said of an error and the exit status that it asks for: 2 for the user's mistakes, 1 for all others.
struct Failure {
  std::string message;  ///< one line
  int status = 1;
};

/// `rank`: "rank 3", named for errors that are not the user's; empty: none.
Failure describe_failure(const std::exception& error, const std::string& rank);

/// "meshtrain: MESSAGE" on stderr; the first that a process reports, and no other. Returns false for another.
bool print_failure(const Failure& failure);

/// Reports what a rank of `world` throws, before anything is cleaned up: what all ranks throw alike, InputError and
/// AgreedError, rank 0 prints; anything else is this rank's own, which prints it and ends the job. With one rank it
/// always prints and returns.
void report_failure(const Group& world, const std::exception& error);

}  // namespace meshtrain

#pragma once

#include <exception>
#include <string>

#include "mesh/group.h"

namespace meshtrain {

/// The message of an error and its exit status: 2 for the user's mistakes, 1 for all others.
struct Failure {
  std::string message;  ///< one line
  int status = 1;
};

/// Returns the message and the exit status of `error`. `rank`: "rank 3", named in errors that are not the user's;
/// empty: none.
Failure describe_failure(const std::exception& error, const std::string& rank);

/// Logs the message (log_failure()) of the first failure that the process reports. Returns false for any other.
bool print_failure(const Failure& failure);

/// Reports an error of a rank of `world` before anything is cleaned up. All ranks throw InputError and AgreedError
/// alike; rank 0 prints them. Any other error is this rank's own: the rank prints it and ends the job. With one rank it
/// always prints and returns.
void report_failure(const Group& world, const std::exception& error);

}  // namespace meshtrain

#pragma once

#include <string>
#include <vector>

namespace meshtrain::testing {

struct Ending {
  int status = -1;  ///< exit status; 128 + signal when a signal ended it
  std::string out;
  std::string err;
};

/// Runs `words`, a program and its arguments, and waits for it; nothing to read on stdin. `environment`: "NAME=VALUE",
/// beside that of the test, from which the variables of launchers are taken out.
Ending run_program(std::vector<std::string> words, const std::vector<std::string>& environment = {});

/// Runs the built meshtrain with `arguments`.
Ending run_meshtrain(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

/// The same on several ranks, with tools/ranks.
Ending run_meshtrain_on_ranks(int ranks, const std::vector<std::string>& arguments);

/// How often `part` stands in `text`.
int count(const std::string& text, const std::string& part);

/// The one line that an ending with `status` says on stderr, without "meshtrain: "; a failed expectation when it is not
/// that.
std::string only_complaint(const Ending& ending, int status = 2);

}  // namespace meshtrain::testing

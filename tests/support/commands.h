#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace meshtrain::testing {

int64_t now_ms();

/// The exit status and the output of a command.
struct Outcome {
  int status = 0;
  int signal = 0;
  std::string output;
  int64_t ended_ms = 0;

  std::vector<int64_t> after(const std::string& word) const {
    std::vector<int64_t> numbers;
    for (size_t at = output.find(word + " "); at != std::string::npos; at = output.find(word + " ", at + 1)) {
      numbers.push_back(std::strtoll(output.c_str() + at + word.size(), nullptr, 10));
    }
    return numbers;
  }
};

/// Runs `command` in a shell; returns stdout and stderr together.
Outcome run(const std::string& command);

/// Returns the path of this test program, quoted.
std::string this_program();

}  // namespace meshtrain::testing

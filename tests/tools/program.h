#pragma once

#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {

struct Ending {
  int status = -1;  ///< exit status; 128 + signal when a signal ended it
  std::string out;
  std::string err;     ///< stderr without `late`
  std::string late{};  ///< lines about ranks that start late or are slow, which a busy machine adds to any case
};

/// Words in every warning about a slow rank.
inline constexpr const char* kSlowRank = " is slower than the others in each step";

/// A program that runs in parallel with the test.
class Program {
 public:
  /// Starts `words`, a program and its arguments, with an empty stdin. `environment`: "NAME=VALUE", added to the test's
  /// environment without the variables of launchers.
  explicit Program(std::vector<std::string> words, const std::vector<std::string>& environment = {});
  /// Waits for the program.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void signal(int number) const;
  bool has_ended() const;
  /// Waits until it ends. Call once.
  Ending wait();

 private:
  ScratchFolder folder_;
  int process_ = 0;
};

/// Starts a program, as Program does, and waits for it.
Ending run_program(std::vector<std::string> words, const std::vector<std::string>& environment = {});

/// Runs the built meshtrain with `arguments`.
Ending run_meshtrain(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});

/// Runs the built meshtrain on several ranks, with tools/ranks.
Ending run_meshtrain_on_ranks(int ranks, const std::vector<std::string>& arguments);

/// Returns how often `part` occurs in `text`.
int count(const std::string& text, const std::string& part);

/// Returns the one line on stderr of an ending with `status`, without "meshtrain: ". Fails the test for another ending.
std::string only_complaint(const Ending& ending, int status = 2);

}  // namespace meshtrain::testing

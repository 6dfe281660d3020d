#pragma once

#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {

struct Ending {
  int status = -1;  ///< exit status; 128 + signal when a signal ended it
  std::string out;
  std::string err;
};

/// A program that runs beside the test.
class Program {
 public:
  /// Starts `words`, a program and its arguments; nothing to read on stdin. `environment`: "NAME=VALUE", beside that
  /// of the test, from which the variables of launchers are taken out.
  explicit Program(std::vector<std::string> words, const std::vector<std::string>& environment = {});
  /// Waits for it.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void signal(int number) const;
  /// Waits until it ends. Once.
  Ending wait();

 private:
  ScratchFolder folder_;
  int process_ = 0;
};

/// Starts it, as Program does, and waits for it.
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

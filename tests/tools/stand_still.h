#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/files.h"
#include "tests/support/load.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {

/// A test of training whose ranks stand still: whom the program names.
class StandStill : public TrainProgram {
 protected:
  using Clock = std::chrono::steady_clock;

  Words endless(int ranks, const std::string& mesh, Words settings = {}, const std::string& prologue = "") const {
    settings.insert(settings.begin(), {"train.steps=100000000", "parallel.stall_warning=1", "train.log_every=1000"});
    Words words = {"--mesh", mesh};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    return command(ranks, words, prologue);
  }

  /// Returns the process of a rank.
  int process_of(int rank) const {
    for (const std::filesystem::path& folder : processes()) {
      std::ifstream file(folder / "environ");
      std::string text{std::istreambuf_iterator<char>(file), {}};
      std::replace(text.begin(), text.end(), '\0', '\n');
      if (("\n" + text).find("\nOMPI_COMM_WORLD_RANK=" + std::to_string(rank) + "\n") != std::string::npos) {
        return std::stoi(folder.filename().string());
      }
    }
    throw std::runtime_error("no process of rank " +
                             std::to_string(rank));  // signals to 0 would go to the test's own group
  }

  /// A shell's words that delay a call of one rank.
  static std::string delay(int rank, const std::string& call) {
    return "[ $OMPI_COMM_WORLD_RANK != " + std::to_string(rank) + " ] || export LD_PRELOAD=" + build_folder() +
           "/tests/libfaults.so MESHTRAIN_FAULTS='" + call + "'";
  }

  static Words warnings_of(const Ending& ending) {
    Words found;
    std::istringstream lines(ending.err);
    const std::string begin = "meshtrain: warning: ";
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(begin)) found.push_back(line.substr(begin.size()));
    }
    return found;
  }

  static void expect_match(const std::string& text, const std::string& pattern) {
    EXPECT_TRUE(std::regex_search(text, std::regex(pattern))) << text << "\nis not\n" << pattern;
  }
};

/// Returns a pattern for the name of a rank in messages.
inline std::string name_of_rank(int rank) {
  return "rank " + std::to_string(rank) + R"( \((pp=\d )?dp=\d cp=\d tp=\d\) on \S+)";
}

/// A pattern for a group, or for a link with both ends.
inline const std::string kGroupOrLink = R"((group \w+(?: ends)?|link pp \d>\d from rank \d to rank \d))";

}  // namespace meshtrain::testing

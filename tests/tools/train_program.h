#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {

/// Arguments of a run that goes on until the test ends it.
inline const std::vector<std::string> kForever = {"--set", "train.steps=1000000"};

/// A test of `meshtrain train` on several ranks, in a folder with a recipe of a tiny model and its tokens.
class TrainProgram : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;

  TrainProgram();
  /// Checks that no process of this test is left.
  ~TrainProgram() override;

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  void write(const std::string& name, const std::string& content) const;

  /// Returns the command "train `recipe` --run-dir `run_dir` `arguments`". A shell that runs `prologue` first starts
  /// each rank.
  Words command(int ranks, const Words& arguments, const std::string& prologue = "") const;
  /// Runs the command to its end, which must come soon.
  Ending train(int ranks, const Words& arguments, const std::string& prologue = "") const;
  /// Returns the one line that the command ends with, from one rank, without "meshtrain: ".
  std::string complaint(int ranks, const Words& arguments, int status = 2, const std::string& prologue = "") const;
  /// Returns that line of any ending.
  static std::string complaint(const Ending& ending, int status);

  /// Returns true when a process that command() describes is running.
  bool is_running() const { return !processes().empty(); }
  /// Returns their folders in /proc.
  std::vector<std::filesystem::path> processes() const;
  /// Returns the names of the threads of all processes that command() describes.
  std::vector<std::string> threads() const;

  /// Returns the lines of metrics.jsonl written so far.
  std::vector<nlohmann::json> metrics() const;
  /// Waits until metrics.jsonl has so many lines. Fails the test when they do not come.
  void wait_for_steps(size_t steps) const;

  std::filesystem::path recipe;
  std::filesystem::path run_dir;

 private:
  ScratchFolder folder_;
};

/// Returns the complete lines of a file of JSON objects written so far.
std::vector<nlohmann::json> lines(const std::filesystem::path& file);

/// Expects 1, 2, ..., count as the steps of `metrics`.
void expect_steps(const std::vector<nlohmann::json>& metrics, size_t count);

}  // namespace meshtrain::testing

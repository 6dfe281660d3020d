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

/// `meshtrain train` on several ranks, in a folder that has a recipe of a tiny model and its tokens.
class TrainProgram : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;

  TrainProgram();
  /// No process of this test is alive any more.
  ~TrainProgram() override;

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  void write(const std::string& name, const std::string& content) const;

  /// train `recipe` --run-dir `run_dir` `arguments`. Each rank is started by a shell that runs `prologue` first.
  Words command(int ranks, const Words& arguments, const std::string& prologue = "") const;
  /// Runs it to its end, which comes soon.
  Ending train(int ranks, const Words& arguments, const std::string& prologue = "") const;
  /// The one line that it ends with, from one rank, without "meshtrain: ".
  std::string complaint(int ranks, const Words& arguments, int status = 2, const std::string& prologue = "") const;
  /// The same of any ending.
  static std::string complaint(const Ending& ending, int status);

  /// Whether a process that command() describes is alive.
  bool is_running() const { return !processes().empty(); }
  /// Their folders in /proc.
  std::vector<std::filesystem::path> processes() const;
  /// The names of the threads of all processes that command() describes.
  std::vector<std::string> threads() const;

  /// The lines of metrics.jsonl that are there by now.
  std::vector<nlohmann::json> metrics() const;

  std::filesystem::path recipe;
  std::filesystem::path run_dir;

 private:
  ScratchFolder folder_;
};

/// The whole lines of a file of JSON objects that are there by now.
std::vector<nlohmann::json> lines(const std::filesystem::path& file);

/// 1, 2, ..., count are the steps of `metrics`.
void expect_steps(const std::vector<nlohmann::json>& metrics, size_t count);

}  // namespace meshtrain::testing

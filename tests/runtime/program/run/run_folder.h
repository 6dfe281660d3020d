#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "mesh/base/log.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/run/run.h"
#include "runtime/program/run/run_directory.h"
#include "runtime/program/telemetry/events.h"
#include "tests/support/faults/faults.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {

/// A test that runs a tiny model in this process, with a recipe and tokens in a folder.
class RunFolder : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;

  RunFolder() {
    std::string tokens;
    for (int i = 0; i < 100 * 17; ++i) tokens += static_cast<char>(i % 50);
    write_file(path("tokens.bin"), tokens);
    write_file(path("tiny.yaml"),
               R"(model: {family: llama, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1,
  num_attention_heads: 4, num_key_value_heads: 4, vocab_size: 64, tie_word_embeddings: true}
data: {tokens: tokens.bin, dtype: uint8, layout: records}
train: {sequence_length: 16, global_batch: 4, steps: 4}
optimizer: {learning_rate: 1.0e-2}
device: cpu
)");
  }

  /// Clears the state that a run leaves in the process: its log, its events and its injected faults.
  ~RunFolder() override {
    inject_faults("");
    close_log();
    keep_events_in({}, {});
  }

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  std::filesystem::path checkpoint(const std::string& name) const { return run_dir / "checkpoints" / name; }

  Recipe recipe(const Words& settings = {}) const { return load_recipe(path("tiny.yaml"), settings, ""); }
  static Decisions decisions_of(const Recipe& recipe) {
    return resolve(recipe, MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, 1));
  }

  /// Trains, and stores in `log` the lines that the run adds to its log.
  RunEnd train(const Words& settings = {}, RunOptions options = {}) {
    if (options.run_dir.empty()) options.run_dir = run_dir;
    return train_recipe(recipe(settings), options);
  }
  RunEnd train_recipe(const Recipe& recipe, const RunOptions& options) {
    const size_t before = content(run_dir / "console.log").size();
    const auto end = meshtrain::run(recipe, Group(), options, StopRequest());
    log = content(run_dir / "console.log").substr(before);
    return end;
  }
  /// Runs to the expected Error and returns its message.
  template <class Error>
  std::string failure(const Words& settings, const RunOptions& options = {}) {
    return message<Error>([&] { train(settings, options); });
  }

  /// Returns the complete lines of a file of JSON objects in the run directory.
  std::vector<nlohmann::json> lines(const std::string& file) const {
    std::vector<nlohmann::json> found;
    std::istringstream text(content(run_dir / file));
    for (std::string line; std::getline(text, line);) found.push_back(nlohmann::json::parse(line));
    return found;
  }
  /// Returns `key` of each line of metrics.jsonl.
  std::vector<double> column(const std::string& key) const {
    std::vector<double> values;
    for (const nlohmann::json& line : lines("metrics.jsonl")) values.push_back(line.at(key));
    return values;
  }
  /// Returns the names of the events in events.jsonl.
  Words events() const {
    Words names;
    for (const nlohmann::json& line : lines("events.jsonl")) names.push_back(line.at("event"));
    return names;
  }
  /// Returns the names of the folders with checkpoints.
  Words checkpoints() const {
    Words names;
    if (!std::filesystem::exists(run_dir / "checkpoints")) return names;
    for (const auto& entry : std::filesystem::directory_iterator(run_dir / "checkpoints")) {
      const std::string name = entry.path().filename();
      if (!name.starts_with("run-")) names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }

  static RunOptions resumed() { return {.run_dir = {}, .resume = true}; }

 private:
  ScratchFolder folder_;

 protected:
  std::filesystem::path run_dir = folder_.path() / "run";
  std::string log;
};

}  // namespace meshtrain::testing

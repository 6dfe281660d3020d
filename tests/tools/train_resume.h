#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {

/// Returns a shell line that makes a program's calls fail (tests/support/faults).
inline std::string with_faults(const std::string& faults) {
  return "export LD_PRELOAD=" + build_folder() + "/tests/libfaults.so MESHTRAIN_FAULTS=" + faults;
}

/// A test of runs that write checkpoints and are resumed.
class TrainResume : public TrainProgram {
 protected:
  std::filesystem::path checkpoints() const { return run_dir / "checkpoints"; }
  /// Returns the names in the folder of checkpoints, without the file with the id of their run.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints())) {
      const std::string name = entry.path().filename();
      if (!name.starts_with("run-")) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  /// Trains `steps` steps. Fails the test when the run does not end normally.
  Ending run(int ranks, const std::string& mesh, int steps, const Words& more = {}) const {
    Words words = {"--mesh", mesh, "--set", "train.steps=" + std::to_string(steps)};
    words.insert(words.end(), more.begin(), more.end());
    const Ending ending = train(ranks, words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending;
  }
};

inline const std::vector<std::string> kEvery3 = {"--set", "checkpoint.every=3"};
inline const std::vector<std::string> kResume = {"--resume", "--set", "checkpoint.every=3"};

/// Returns `key` of each line.
inline std::vector<double> column(const std::vector<nlohmann::json>& metrics, const std::string& key) {
  std::vector<double> values;
  for (const nlohmann::json& line : metrics) values.push_back(line.at(key));
  return values;
}

}  // namespace meshtrain::testing

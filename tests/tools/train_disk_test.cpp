// A run with checkpoints and an export on a failing disk: each call for a file of the run, with each error.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <set>

#include "mesh/group.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/run/run.h"
#include "tests/support/faults/faults.h"
#include "tests/support/files.h"
#include "tests/support/full_run.h"
#include "tests/tools/train_program.h"
#include "tools/meshtrain/report.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

struct Call {
  std::string name, path;  // for a rename: "FROM TO"
};

/// The `number`-th of these calls, from 0. In `pattern` "*" replaces text that differs between runs.
struct CallPoint {
  std::string call, pattern;
  int number = 0;
};

class TrainDisk : public TrainProgram {
 protected:
  fs::path checkpoints() const { return run_dir / "checkpoints"; }
  std::string file_of_log() const { return path("calls").string(); }

  /// Trains to step `steps` with a checkpoint at each step, and keeps the last.
  Ending run_to(int steps, Words environment = {}) const {
    Words words = {"train",     recipe,
                   "--run-dir", run_dir,
                   "--set",     "train.steps=" + std::to_string(steps),
                   "--set",     "checkpoint={every: 1, keep_last: 1}"};
    environment.emplace_back("OMP_NUM_THREADS=1");
    return run_meshtrain(words, environment);
  }
  Words preload(const std::string& variable) const {
    return {"LD_PRELOAD=" + build_folder() + "/tests/libfaults.so", variable};
  }

  /// Runs from step 2 to step 4 and exports, with these faults, in a copy of this process, which takes a tenth of the
  /// time that the program needs to start.
  Ending resume(const std::string& faults = "", const fs::path& log = "") const {
    const int process = ::fork();
    if (process == 0) {
      std::freopen(path("out").c_str(), "w", stdout);
      std::freopen(path("err").c_str(), "w", stderr);
      inject_faults(faults);
      log_calls(log);
      ::_exit(train_on());
    }
    int state = 0;
    ::waitpid(process, &state, 0);
    return {WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state), content(path("out")), content(path("err"))};
  }
  int train_on() const {
    int status = 0;
    try {
      at::set_num_threads(1);
      const Recipe asked = load_recipe(recipe,
                                       {"train.steps=4", "checkpoint={every: 1, keep_last: 1}", "device=cpu",
                                        "train.export=" + path("weights").string()},
                                       "");
      status = static_cast<int>(meshtrain::run(asked, Group(), {.run_dir = run_dir, .resume = true}, StopRequest()));
    } catch (const std::exception& error) {
      const Failure failure = describe_failure(error, "");
      print_failure(failure);
      status = failure.status;
    }
    std::fflush(nullptr);
    return status;
  }

  /// Returns the calls of this run, in order.
  std::vector<Call> make_calls() {
    EXPECT_EQ(run_to(2).status, 0);
    fs::copy(run_dir, path("base"), fs::copy_options::recursive);
    const Ending ending = resume("", file_of_log());
    EXPECT_EQ(ending.status, 0) << ending.err;
    return calls();
  }
  std::vector<Call> calls() const {
    std::vector<Call> calls;
    std::ifstream log(file_of_log());
    const std::string own = run_dir.parent_path();
    for (std::string line; std::getline(log, line);) {
      const size_t space = line.find(' ');
      if (line.compare(space + 1, own.size(), own) == 0)
        calls.push_back({line.substr(0, space), line.substr(space + 1)});
    }
    return calls;
  }

  /// Restores the state before make_calls() continued.
  void start_over() const {
    for (const fs::path& folder : {run_dir, path("weights"), path("weights.partial")}) fs::remove_all(folder);
    fs::copy(path("base"), run_dir, fs::copy_options::recursive);
  }

  std::vector<double> losses() const {
    std::vector<double> values;
    for (const nlohmann::json& line : metrics()) values.push_back(line.at("loss"));
    return values;
  }

  void expect_that_nothing_is_lost(const CallPoint& point, const std::string& error);

  std::set<std::map<std::string, std::string>> resumed_;               // states of runs that were resumed already
  std::map<std::string, std::string> weights_;                         // exported by an undisturbed run
  std::map<std::string, std::map<std::string, std::string>> written_;  // checkpoints of an undisturbed run
  std::vector<double> losses_;
  std::map<std::string, std::map<int, int>> num_endings_;  // by call and status
};

/// Returns the pattern of a path: "*" for names that are random at each start.
std::string pattern_of(const std::string& path) {
  std::string pattern = std::regex_replace(path, std::regex("(step-[0-9]{8}\\.|run-)[0-9a-f]{16}"), "$1*");
  pattern = std::regex_replace(pattern, std::regex("\\.partial-[0-9A-Za-z]{6}"), ".partial-*");
  std::replace(pattern.begin(), pattern.end(), ' ', '*');  // between the paths of a rename
  return pattern;
}

/// Returns the first two and the last of equal calls for one file, which has as many as tensors.
std::vector<CallPoint> points_of(const std::vector<Call>& calls) {
  std::map<std::pair<std::string, std::string>, int> numbers;
  for (const Call& call : calls) ++numbers[{call.name, pattern_of(call.path)}];
  std::vector<CallPoint> points;
  for (const auto& [call, number] : numbers) {
    std::set<int> chosen{0, std::min(1, number - 1), number - 1};
    if (call.first != "pwrite") {
      for (int i = 0; i < number; ++i) chosen.insert(i);
    }
    for (const int i : chosen) points.push_back({call.first, call.second, i});
  }
  return points;
}

/// Returns the files that are renamed, or left at the end, without being durable.
std::vector<std::string> not_durable(const std::vector<Call>& calls, const fs::path& run_dir) {
  std::set<std::string> unsynced;  // files written to, and folders with new names in them
  std::vector<std::string> complaints;
  for (const Call& call : calls) {
    const fs::path file = call.path.substr(0, call.path.find(' '));
    const std::string folder = file.parent_path();
    const bool is_id = call.name == "open" && file.filename().string().starts_with("run-");
    const bool is_folder = call.name == "mkdir" && file.extension() != ".tmp";  // a .tmp folder gets another name
    if (is_folder || is_id) unsynced.insert(folder);
    if (call.name == "pwrite") unsynced.insert(file);
    if (call.name == "fsync" || call.name == "fdatasync") unsynced.erase(file);
    if (call.name != "rename") continue;
    // After one of these three calls the checkpoint counts, or the previous one no longer does.
    const bool decides =
        call.path.ends_with("/manifest.json") || file.extension() == ".tmp" || call.path.ends_with(".removed");
    for (const std::string& path : unsynced) {
      if ((decides && !path.ends_with("/goodput.jsonl")) || path == file)
        complaints.push_back(path + " at rename " + call.path);
    }
    unsynced.insert(folder);
  }
  for (const std::string& path : unsynced) {
    if (path.starts_with(run_dir.string())) complaints.push_back(path + " at the end");
  }
  return complaints;
}

TEST_F(TrainDisk, WhatIsRenamedIsDurableAndBecomesSo) {
  EXPECT_EQ(run_to(3, preload("MESHTRAIN_FAULTS_LOG=" + file_of_log())).status, 0);
  const std::vector<Call> calls = this->calls();
  EXPECT_EQ(not_durable(calls, run_dir), Words{});

  const auto num_renames = [&](const std::string& end) {
    return std::count_if(calls.begin(), calls.end(),
                         [&](const Call& call) { return call.name == "rename" && call.path.ends_with(end); });
  };
  EXPECT_EQ(num_renames("/step-00000003"), 1);
  EXPECT_EQ(num_renames("/manifest.json"), 3);
  EXPECT_EQ(num_renames("/rank-00000.safetensors"), 3);
  EXPECT_EQ(num_renames(".removed"), 2);

  int num_syncs = 0;
  bool begun = false;  // before the checkpoints' folder exists, a folder is made durable twice
  for (size_t i = 0; i < calls.size(); ++i) {
    begun = begun || (calls[i].name == "mkdir" && calls[i].path == checkpoints());
    if (calls[i].name != "fsync" || !begun) continue;
    std::vector<Call> without = calls;
    without.erase(without.begin() + static_cast<long>(i));
    EXPECT_NE(not_durable(without, run_dir), Words{}) << calls[i].path << " need not be synchronised";
    ++num_syncs;
  }
  EXPECT_EQ(num_syncs, 2 + 3 * 5 + 2) << "names of the folder and its id; of each checkpoint two files, their names "
                                         "and its own; of those that are removed";
}

/// Returns true for a call that a run does not need; a failure leaves files as they are.
bool may_fail(const CallPoint& point) {
  if (point.call == "rename" && has(point.pattern, ".removed")) return true;  // an old checkpoint stays
  if (has(point.pattern, "/console.log")) return true;                        // the terminal has its lines
  for (const char* warned : {"/goodput.jsonl", "/events.jsonl"}) {            // a line says that they lack something
    if (has(point.pattern, warned)) return true;
  }
  for (const char* needed : {"write", "pwrite", "fsync", "sync_file_range", "ftruncate", "rename", "mkdir"}) {
    if (point.call == needed) return false;
  }
  return true;
}

void TrainDisk::expect_that_nothing_is_lost(const CallPoint& point, const std::string& error) {
  const std::string fault = point.call + ":" + point.pattern + "$:" + error + ":" + std::to_string(point.number) + ":1";
  SCOPED_TRACE(fault);
  start_over();
  const Ending ending = resume(fault);
  ++num_endings_[point.call][ending.status];
  if (error.ends_with("KILL")) {
    EXPECT_EQ(ending.status, 128 + 9) << ending.err;
  } else if (ending.status == 0) {
    EXPECT_TRUE(may_fail(point)) << "the failure was not seen";
    EXPECT_EQ(losses(), losses_);
    EXPECT_EQ(contents(path("weights")), weights_);
  } else {
    EXPECT_TRUE(ending.status == 1 || ending.status == 2) << ending.status;
    EXPECT_TRUE(ending.err.starts_with("meshtrain: ") && count(ending.err, "\n") == 1) << ending.err;
    static const std::map<std::string, int> numbers = {
        {"ENOSPC", ENOSPC}, {"EIO", EIO}, {"ENODATA", ENODATA}, {"EACCES", EACCES}, {"ESTALE", ESTALE}};
    EXPECT_TRUE(has(ending.err, std::strerror(numbers.at(error)))) << ending.err;
    const std::string last = point.pattern.substr(point.pattern.rfind('/') + 1);
    std::string name = last.substr(0, last.find('*'));
    if (name.ends_with(".partial")) name.resize(name.size() - 8);
    EXPECT_TRUE(has(ending.err, name)) << ending.err << " does not name " << name;
  }

  int64_t announced = 2;
  for (int64_t step = 3; step <= 4; ++step) {
    if (has(ending.out, "checkpoint of step " + std::to_string(step) + " written")) announced = step;
  }
  int64_t newest = 0;
  for (const auto& entry : fs::directory_iterator(checkpoints())) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step-") || has(name, ".")) continue;
    newest = std::max<int64_t>(newest, std::stoll(name.substr(5)));
    EXPECT_EQ(contents(entry.path()), written_.at(name)) << name;
  }
  EXPECT_GE(newest, announced) << ending.out << ending.err;

  std::map<std::string, std::string> left;
  for (const auto& [name, content] : contents(run_dir)) left[pattern_of(name)] = content;
  for (const char* times : {"goodput.jsonl", "console.log", "events.jsonl"}) left.erase(times);
  std::string& log = left["metrics.jsonl"];  // contains times
  log = std::to_string(std::count(log.begin(), log.end(), '\n'));
  if (!resumed_.insert(left).second) return;
  for (const char* folder : {"weights", "weights.partial"}) fs::remove_all(path(folder));
  const Ending again = resume();
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_TRUE(has(again.out, "resumed after step " + std::to_string(newest))) << again.out;
  EXPECT_EQ(losses(), losses_);
  EXPECT_EQ(contents(path("weights")), weights_);
}

TEST_F(TrainDisk, NoCallThatFailsLosesACheckpoint) {
  const std::vector<CallPoint> points = points_of(make_calls());
  losses_ = losses();
  weights_ = contents(path("weights"));
  written_["step-00000004"] = contents(checkpoints() / "step-00000004");
  for (int step : {2, 3}) {
    start_over();
    if (step == 3) resume("rename:step-00000003*step-*.removed:KILL");
    const std::string name = "step-0000000" + std::to_string(step);
    written_[name] = contents(checkpoints() / name);
  }
  std::vector<std::pair<CallPoint, std::string>> cases;
  for (const CallPoint& point : points) {
    for (const char* error : {"ENOSPC", "EIO", "ENODATA", "EACCES", "ESTALE", "KILL"}) cases.emplace_back(point, error);
  }
  ASSERT_GT(points.size(), 100u);
  if (!is_full_run()) {
    std::shuffle(cases.begin(), cases.end(), std::mt19937(17));
    cases.resize(40);
  }
  for (const auto& [point, error] : cases) expect_that_nothing_is_lost(point, error);
  std::printf("%zu failures at %zu calls, %zu ways to leave a run:", cases.size(), points.size(), resumed_.size());
  for (const auto& [call, endings] : num_endings_) {
    std::printf("\n  %s:", call.c_str());
    for (const auto& [status, number] : endings) std::printf(" %d with status %d", number, status);
  }
  std::printf("\n");
}

}  // namespace
}  // namespace meshtrain::testing

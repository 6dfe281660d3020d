// Ranks on two hosts are killed at any moment: nothing that was reported as written is lost.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <regex>
#include <thread>

#include "mesh/base/files/file_lock.h"
#include "tests/support/files.h"
#include "tests/support/full_run.h"
#include "tests/support/load.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 300;

/// The distribution of the ranks on two hosts, and whether each has its own disk.
struct Layout {
  std::string ranks, rule;
  bool own_disks;

  std::string describe() const { return ranks + " by " + rule + (own_disks ? ", own disks" : ", one disk"); }
};

const std::vector<Layout> kLayouts = {{"2,2", "slot", false}, {"2,2", "node", false}, {"3,1", "slot", false},
                                      {"2,2", "slot", true},  {"2,2", "node", true},  {"3,1", "slot", true}};

class TrainKill : public TrainProgram {
 protected:
  using Random = std::mt19937;

  void SetUp() override {
    const Ending probe = run_program({source_folder() + "/tests/support/two_hosts", "--ranks", "1,1", "true"});
    if (probe.status == 77) GTEST_SKIP() << probe.err;
  }

  fs::path disk() const { return path("disk"); }  // disk of the second host, if it has its own
  fs::path folder_of(int host, const Layout& layout) const {
    return (host == 1 && layout.own_disks ? disk() : run_dir) / "checkpoints";
  }

  /// Trains on four ranks of two hosts to step `steps`, with a checkpoint at each step, and keeps the last.
  Words command_on(const Layout& layout, const std::string& mesh, int steps, const std::string& prologue = "") const {
    Words words = {source_folder() + "/tests/support/two_hosts", "--ranks", layout.ranks, "--map-by", layout.rule};
    if (layout.own_disks) {
      for (const fs::path& folder : {run_dir, disk()}) fs::create_directories(folder);
      words.insert(words.end(), {"--own", run_dir.string() + "=" + disk().string()});
    }
    if (!prologue.empty()) words.insert(words.end(), {"/bin/sh", "-c", prologue + "\nexec \"$0\" \"$@\""});
    words.insert(words.end(),
                 {build_folder() + "/meshtrain", "train", recipe, "--run-dir", run_dir, "--resume", "--mesh", mesh,
                  "--set", "train={precision: fp64, time_limit: 300, steps: " + std::to_string(steps) + "}", "--set",
                  "parallel.fsdp.mode=full_shard", "--set", "checkpoint={every: 1, keep_last: 1}"});
    return words;
  }

  /// Returns the processes of the ranks by host, which their network identifies.
  std::map<std::string, std::vector<int>> ranks_by_host() const {
    std::map<std::string, std::vector<int>> ranks;
    std::error_code gone;
    for (const fs::path& process : processes()) {
      if (fs::read_symlink(process / "exe", gone).filename() != "meshtrain") continue;
      ranks[fs::read_symlink(process / "ns/net", gone)].push_back(std::stoi(process.filename()));
    }
    return ranks;
  }

  /// Kills one rank, those of one host, or all.
  std::string kill_some(Random& random) const {
    std::map<std::string, std::vector<int>> hosts = ranks_by_host();
    if (hosts.empty()) return "nobody";
    const auto host = std::next(hosts.begin(), static_cast<long>(random() % hosts.size()));
    std::vector<int> killed;
    const unsigned kind = random() % 4;
    if (kind < 2) {
      killed = {host->second[random() % host->second.size()]};
    } else if (kind == 2) {
      killed = host->second;
    } else {
      for (const auto& [name, ranks] : hosts) killed.insert(killed.end(), ranks.begin(), ranks.end());
    }
    for (const int process : killed) kill(process, SIGKILL);
    return std::to_string(killed.size()) + " ranks";
  }

  /// Returns the step to resume from, according to rank 0's disk.
  int64_t newest() const {
    int64_t newest = 0;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(run_dir / "checkpoints", none)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-") && !has(name, ".")) newest = std::max<int64_t>(newest, std::stoll(name.substr(5)));
    }
    return newest;
  }
  static std::string name_of(int64_t step) {
    std::string digits = std::to_string(step);
    return "step-" + std::string(8 - digits.size(), '0') + digits;
  }

  /// Expects the checkpoint to have every byte of every piece, on both disks together.
  void expect_complete(int64_t step, const Layout& layout) const {
    const fs::path joined = path("joined") / name_of(step);
    fs::remove_all(joined.parent_path());
    fs::create_directories(joined);
    for (const int host : {0, 1}) {
      fs::copy(folder_of(host, layout) / name_of(step), joined,
               fs::copy_options::overwrite_existing | fs::copy_options::recursive);
    }
    const Ending ending = run_meshtrain({"checkpoint", "verify", joined.string()});
    EXPECT_EQ(ending.status, 0) << ending.out << ending.err;
  }

  /// Returns the last step whose checkpoint a run reported as written; 0: none.
  static int64_t announced(const Ending& ending) {
    int64_t step = 0;
    const std::regex line("checkpoint of step ([0-9]+) written");
    for (std::sregex_iterator at(ending.out.begin(), ending.out.end(), line), end; at != end; ++at) {
      step = std::stoll((*at)[1]);
    }
    return step;
  }

  void expect_losses(const std::vector<double>& reference) const {
    const std::vector<nlohmann::json> found = metrics();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].at("step"), i + 1) << run_dir;
      const double loss = found[i].at("loss");
      EXPECT_NEAR(loss, reference.at(i), 1e-9 * reference.at(i)) << "step " << i + 1 << " of " << run_dir;
    }
  }

  std::vector<double> reference_losses() {
    const fs::path own = run_dir;
    run_dir = path("reference");
    const Ending ending =
        run_meshtrain({"train", recipe, "--run-dir", run_dir, "--set",
                       "train={precision: fp64, time_limit: 300, steps: " + std::to_string(kSteps) + "}"});
    EXPECT_EQ(ending.status, 0) << ending.err;
    std::vector<double> losses;
    for (const nlohmann::json& line : metrics()) losses.push_back(line.at("loss"));
    run_dir = own;
    return losses;
  }
};

int number_of_kills() {
  if (const char* const asked = std::getenv("MESHTRAIN_KILLS")) return std::atoi(asked);
  return is_full_run() ? 200 : 3;
}

// One disk: the run continues on other meshes and layouts. Separate disks: each rank finds what it wrote.
TEST_F(TrainKill, AtRandomMomentsLosesNothing) {
  Random random(std::random_device{}());
  const std::vector<double> reference = reference_losses();
  const int num_kills = number_of_kills();
  const std::vector<std::string> meshes = {"dp=4", "dp=2,tp=2", "dp=2,cp=2", "tp=4"};
  int num_early = 0, num_between = 0;
  int64_t num_written = 0;
  for (int trial = 0, kills = 0; kills < num_kills; ++trial) {
    Layout layout = kLayouts[static_cast<size_t>(trial) % kLayouts.size()];
    run_dir = path("run" + std::to_string(trial));
    fs::remove_all(disk());
    const int in_a_row = std::min(1 + static_cast<int>(random() % (is_full_run() ? 8 : 3)), num_kills - kills);
    int64_t last = 0;
    for (int i = 0; i < in_a_row && last < kSteps; ++i, ++kills) {
      if (!layout.own_disks) layout = kLayouts[random() % 3];
      const std::string mesh = layout.own_disks ? "dp=4" : meshes[random() % meshes.size()];
      const size_t lines_before = metrics().size();
      Program program(command_on(layout, mesh, kSteps));
      if (random() % 5 != 0) {  // otherwise during the start
        wait_until([&] {
          const size_t num_lines = metrics().size();
          const bool is_truncated = lines_before > static_cast<size_t>(last) + 1 && num_lines < lines_before;
          return num_lines > lines_before || is_truncated || program.has_ended();
        });
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 700000));
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 3000));
      }
      const std::string killed = kill_some(random);
      const Ending ending = program.wait();
      SCOPED_TRACE(layout.describe() + ", " + mesh + ", killed " + killed + " after step " + std::to_string(last) +
                   "\n" + ending.out + ending.err);
      if (last > 0 && has(ending.out, "\nresumed after step ")) {
        EXPECT_TRUE(has(ending.out, "\nresumed after step " + std::to_string(last) + ", "));
      }
      const int64_t written = std::max(announced(ending), last), found = newest();
      EXPECT_GE(found, written) << "a checkpoint that was announced is lost";
      num_written += found - last;
      num_early += written == last ? 1 : 0;
      num_between += found > written ? 1 : 0;
      if (found > 0) expect_complete(found, layout);
      last = found;
      if (HasFailure()) return;
    }
    const int steps = static_cast<int>(std::min<int64_t>(last + 2, kSteps));
    const Ending ending = run_program(command_on(layout, "dp=4", steps));
    SCOPED_TRACE(layout.describe() + "\n" + ending.out + ending.err);
    EXPECT_EQ(ending.status, 0);
    EXPECT_TRUE(last == 0 || has(ending.out, "\nresumed after step " + std::to_string(last) + ", "));
    EXPECT_EQ(metrics().size(), static_cast<size_t>(steps));
    expect_losses(reference);
    for (const int host : {0, 1}) {
      int num_names = 0;
      for (const auto& entry : fs::directory_iterator(folder_of(host, layout))) {
        EXPECT_TRUE(entry.path().filename().string().starts_with("run-") || entry.path().filename() == name_of(steps))
            << entry.path() << " was left behind";
        ++num_names;
      }
      EXPECT_EQ(num_names, 2);
    }
    if (HasFailure()) return;
  }
  std::printf(
      "%d kills: %d before a new checkpoint was announced, %d between name and announcement, %lld checkpoints\n",
      num_kills, num_early, num_between, static_cast<long long>(num_written));
}

// Killed at the calls that complete a checkpoint, on separate disks, when one host has done its part and the other has
// not. Only the newest checkpoint is kept.
TEST_F(TrainKill, AtTheCallsThatGiveACheckpointItsNameLosesNothing) {
  const Layout layout{"2,2", "slot", true};
  struct Moment {
    int rank;
    const char* fault;
  };
  std::vector<Moment> moments = {{0, "rename:step-00000003.*.tmp*:KILL"}, {2, "rename:step-00000003.*.tmp*:KILL"}};
  if (is_full_run()) {
    moments.insert(moments.end(), {{2, "rename:step-00000003.*.tmp*:+KILL"},
                                   {0, "rename:step-00000003.*.tmp*:+KILL"},
                                   {0, "rename:step-00000002*.removed:+KILL"},
                                   {2, "rename:step-00000002*.removed:KILL"},
                                   {0, "rename:manifest.json.partial:+KILL:2"}});
  }
  for (const auto& [rank, fault] : moments) {
    for (const fs::path& folder : {run_dir, disk()}) fs::remove_all(folder);
    const std::string prologue = "[ $OMPI_COMM_WORLD_RANK != " + std::to_string(rank) +
                                 " ] || export LD_PRELOAD=" + build_folder() +
                                 "/tests/libfaults.so MESHTRAIN_FAULTS='" + fault + "'";
    const Ending killed = run_program(command_on(layout, "dp=4", 6, prologue));
    SCOPED_TRACE(std::to_string(rank) + " " + fault + "\n" + killed.out + killed.err);
    EXPECT_NE(killed.status, 0);
    const int64_t step = newest();
    EXPECT_GE(step, announced(killed));
    expect_complete(step, layout);
    const Ending again = run_program(command_on(layout, "dp=4", 6));
    EXPECT_EQ(again.status, 0) << again.err;
    EXPECT_TRUE(has(again.out, "\nresumed after step " + std::to_string(step) + ", ")) << again.out;
    EXPECT_EQ(metrics().size(), 6u);
  }
}

// A run with rank 0 on the first host uses the second host's disk; to a run on the second host alone the files there
// look like leftovers.
TEST_F(TrainKill, ADiskThatAnotherRunUsesIsRefused) {
  const Layout layout{"1,1", "slot", true};
  const std::string prologue = "[ $OMPI_COMM_WORLD_RANK != 1 ] || export LD_PRELOAD=" + build_folder() +
                               "/tests/libfaults.so MESHTRAIN_FAULTS='fsync:rank-00001:delay=6000:0:1'";
  Program first(command_on(layout, "dp=2", 1, prologue));
  const auto is_writing = [&] {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(disk() / "checkpoints", none)) {
      if (entry.path().extension() == ".tmp") return true;
    }
    return false;
  };
  EXPECT_TRUE(wait_until(is_writing));
  EXPECT_EQ(only_complaint(run_meshtrain({"train", recipe, "--run-dir", disk(), "--resume"})),
            "the run directory " + disk().string() + " is in use by another run; choose another --run-dir");
  EXPECT_TRUE(is_writing());
  const Ending ending = first.wait();
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(newest(), 1);
  expect_complete(1, layout);

  const LockFile other(disk() / "lock");  // refuses a run on both hosts too
  const std::string message = complaint(run_program(command_on(layout, "dp=2", 2)), 2);
  EXPECT_TRUE(std::regex_search(message, std::regex("^rank 1 on mtb[0-9]+: the run directory "))) << message;
  EXPECT_TRUE(has(message, run_dir.string() + " is in use by another run on that host")) << message;
}

TEST_F(TrainKill, ADiskWithAnotherRunsCheckpointsIsRefused) {
  const Layout layout{"2,2", "slot", true};
  EXPECT_EQ(run_program(command_on(layout, "dp=4", 2)).status, 0);
  fs::remove_all(run_dir);
  const auto before = contents(disk());
  const std::string message = complaint(run_program(command_on(layout, "dp=4", 2)), 2);
  EXPECT_TRUE(std::regex_search(message, std::regex("^rank 2 on mtb[0-9]+: "))) << message;
  EXPECT_TRUE(has(message, (run_dir / "checkpoints").string() + " holds checkpoints of another run")) << message;
  EXPECT_EQ(contents(disk()), before);
}

}  // namespace
}  // namespace meshtrain::testing

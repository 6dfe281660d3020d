// The table of stalls: each rank of several meshes is stopped in each part of a step, or killed, and is named with
// coordinate, collective and cause within 15 s; ranks that are merely disturbed are not named.
#include <csignal>
#include <map>
#include <random>

#include "tests/support/full_run.h"
#include "tests/support/load.h"
#include "tests/tools/stand_still.h"

namespace meshtrain::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Mesh {
  int dp, cp, tp, pp = 1;

  int ranks() const { return pp * dp * cp * tp; }
  std::string text() const {
    return (pp > 1 ? "pp=" + std::to_string(pp) + "," : "") + "dp=" + std::to_string(dp) + ",cp=" + std::to_string(cp) +
           ",tp=" + std::to_string(tp);
  }
  /// Returns "rank 5 (dp=1 cp=0 tp=1)".
  std::string name_of(int rank) const {
    return "rank " + std::to_string(rank) + " (" + (pp > 1 ? "pp=" + std::to_string(rank / (dp * cp * tp)) + " " : "") +
           "dp=" + std::to_string(rank / (cp * tp) % dp) + " cp=" + std::to_string(rank / tp % cp) +
           " tp=" + std::to_string(rank % tp) + ")";
  }
};

std::string escaped(const std::string& text) {
  return std::regex_replace(text, std::regex(R"([()])"), R"(\$&)");
}

class StallTable : public StandStill, public ::testing::WithParamInterface<Mesh> {
 protected:
  /// Where ranks are stopped, as tests/support/halt is told, on a mesh.
  static std::vector<std::string> places_on(const Mesh& mesh) {
    std::vector<std::string> places;
    if (mesh.tp > 1) places.emplace_back("group:tp");
    if (mesh.pp > 1) places.emplace_back("group:pp");
    if (mesh.pp > 1 && !is_full_run()) places.emplace_back("in:forward of block");
    if (!is_full_run()) return places;
    if (mesh.cp > 1) places.emplace_back("group:cp");
    if (mesh.dp > 1) places.emplace_back("group:dp");
    places.insert(places.end(), {"in:forward of ", "in:backward of ", "in:the reading of ", "in:the checkpoint of "});
    return places;
  }

  /// A model whose steps last long enough to be stopped in.
  Words settings(const Mesh& mesh, const std::string& warning) const {
    Words words = {"model.hidden_size=128",
                   "model.intermediate_size=256",
                   "model.num_hidden_layers=" + std::to_string(std::max(mesh.pp, 2)),
                   "train.global_batch=8",
                   "train.time_limit=0",
                   "checkpoint={every: 5, keep_last: 1}",
                   "parallel.fsdp.mode=no_shard"};
    if (!warning.empty()) words.push_back("parallel.stall_warning=" + warning);
    return words;
  }

  /// A shell's words by which each rank stops itself when it is asked to. Where that is in reading, data come more
  /// slowly than steps are made, or they would be there before a rank waits for them.
  std::string halts(const Mesh& mesh, const std::string& place) const {
    const std::string slow = mesh.ranks() == 2 ? "20" : mesh.ranks() == 4 ? "100" : "800";
    return "export LD_PRELOAD=" + build_folder() + "/tests/libhalt.so:" + build_folder() +
           "/tests/libfaults.so MESHTRAIN_FAULTS=pread:tokens.bin:delay=" + (has(place, "reading") ? slow : "2") +
           " MESHTRAIN_HALT_LOG=" + path("halted").string() + ".$OMPI_COMM_WORLD_RANK MESHTRAIN_HALT='" + place + "'";
  }

  static bool is_stopped(int process) {
    const std::string stat = content("/proc/" + std::to_string(process) + "/stat");
    const size_t name_end = stat.rfind(')');
    return name_end != std::string::npos && stat.at(name_end + 2) == 'T';
  }

  /// Returns the warnings of console.log from the `from`-th on; but not of a rank that is slower than the others, which
  /// the thread that looks where a rank is may make it.
  Words said(size_t from) const {
    Words found;
    std::istringstream log(content(run_dir / "console.log"));
    for (std::string line; std::getline(log, line);) {
      if (has(line, "warning: ") && !has(line, kSlowRank)) found.push_back(line.substr(line.rfind("warning: ") + 9));
    }
    found.erase(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(std::min(from, found.size())));
    return found;
  }

  /// Returns what the ranks that run have recorded, put side by side.
  std::string diagnosis(const Mesh& mesh, int stopped) const {
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      if (rank != stopped) kill(process_of(rank), SIGQUIT);
    }
    std::this_thread::sleep_for(seconds(2));
    return run_meshtrain({"diagnose", run_dir.string()}).out;
  }

  /// Lets `rank` stop itself, expects that it is named within `limit`, and lets it go on.
  void expect_named(const Mesh& mesh, int rank, const std::string& place, seconds limit, Words& told) const {
    const std::filesystem::path seen = path("halted." + std::to_string(rank));
    const int process = process_of(rank);
    std::ofstream(seen) << "";
    wait_until([&] { return is_stopped(process); }, seconds(180));
    ASSERT_TRUE(is_stopped(process)) << "it is never there\n" << content(run_dir / "console.log");
    const auto stopped = Clock::now();
    const auto has_named = [&] {
      const Words now = said(told.size());
      return !now.empty() && has(now.back(), " hold") && has(now.back(), mesh.name_of(rank));
    };
    wait_until([&] { return has_named(); }, limit);
    const double took = std::chrono::duration<double>(Clock::now() - stopped).count();
    ASSERT_TRUE(has_named()) << "nothing is said of it within " << limit.count() << " s\n"
                             << diagnosis(mesh, rank) << content(run_dir / "console.log");
    longest_ = std::max(longest_, took);
    const std::string warning = said(told.size()).back();
    expect_match(warning, "^" + escaped(mesh.name_of(rank)) + R"( on \S+ holds up \d ranks?, )" +
                              R"(for \d+ s in \w+ of \[[\d, .]*\] \w+ for [\w. ]+, number \d+ of )" + kGroupOrLink +
                              ": " +
                              R"(its process is stopped, by a signal or a debugger; it was in [^;]*step \d+[^;]*; )" +
                              R"(its last collective was \w+ of \[[\d, .]*\] \w+ for [\w. ]+, )");
    kill(process, SIGCONT);
    // The process may have issued some more until the signal reached it.
    const std::filesystem::path after = path("halted." + std::to_string(rank) + ".after");
    wait_until([&] { return has(content(after), "end\n"); });
    if (mesh.pp > 1 && has(place, "ward of"))
      expect_match(warning, R"(; it was in step \d+, micro-batch \d, (for|back)ward of )");
    if (place.starts_with("in:")) {
      const std::string was = warning.substr(warning.find("; it was in ") + 12);
      const std::string phase_told = was.substr(0, std::min(was.find("; its last"), was.find(", where nothing")));
      EXPECT_TRUE(has(phase_told, place.substr(3)) || has(content(after), "phase " + phase_told + "\n"))
          << warning << "\n"
          << content(after);
    }
    const std::string told_last = warning.substr(warning.rfind("number "));
    EXPECT_TRUE(has("\n" + content(after), "\n" + told_last + "\n")) << warning << "\n" << content(after);
    wait_until([&] { return said(0).back().starts_with("the ranks continue"); });
    told = said(0);
    ASSERT_TRUE(told.back().starts_with("the ranks continue")) << content(run_dir / "console.log");
  }

  /// Stops each rank of a mesh at a place, in one run.
  void expect_each_named(const Mesh& mesh, const std::string& place, const std::string& warning, seconds limit) {
    SCOPED_TRACE(mesh.text() + " " + place);
    std::filesystem::remove_all(run_dir);
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      for (const char* end : {"", ".after"}) std::filesystem::remove(path("halted." + std::to_string(rank) + end));
    }
    Program program(endless(mesh.ranks(), mesh.text(), settings(mesh, warning), halts(mesh, place)));
    wait_for_steps(5);
    Words told;
    for (int rank = 0; rank < mesh.ranks() && !HasFatalFailure(); ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      expect_named(mesh, rank, place, limit, told);
    }
    for (int rank = 0; rank < mesh.ranks(); ++rank) kill(process_of(rank), SIGCONT);
    program.signal(SIGUSR1);
    const Ending ending = program.wait();
    EXPECT_EQ(ending.status, 75) << ending.err;
    if (HasFailure()) return;
    EXPECT_EQ(told.size(), 2 * static_cast<size_t>(mesh.ranks())) << "nobody else is named:\n" << ending.err;
    std::printf("%s %s: %d of %d ranks named, after %.1f s at most\n", mesh.text().c_str(), place.c_str(), mesh.ranks(),
                mesh.ranks(), longest_);
    std::fflush(stdout);
  }

  mutable double longest_ = 0;  // from a stop to its line
};

TEST_P(StallTable, ARankThatIsStoppedAnywhereIsNamed) {
  for (const std::string& place : places_on(GetParam())) expect_each_named(GetParam(), place, "3", seconds(15));
}

// With parallel.stall_warning of 10 s, as in a recipe that does not say.
TEST_P(StallTable, ARankThatIsStoppedIsNamedWithinFifteenSeconds) {
  const bool has_stages = GetParam().pp > 1;
  if (!is_full_run() || (GetParam().tp == 1 && !has_stages)) {
    GTEST_SKIP() << "11 s for each rank, of meshes with tp or pp and a full run";
  }
  expect_each_named(GetParam(), has_stages ? "group:pp" : "group:tp", "10", seconds(15));
}

TEST_P(StallTable, ARankThatIsKilledIsNamed) {
  const Mesh& mesh = GetParam();
  for (int rank = is_full_run() ? 0 : mesh.ranks() - 1; rank < mesh.ranks(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    std::filesystem::remove_all(run_dir);
    Program program(endless(mesh.ranks(), mesh.text(), settings(mesh, "60")));
    wait_for_steps(static_cast<size_t>(10 + rank));
    const auto killed = Clock::now();
    kill(process_of(rank), SIGKILL);
    const Ending ending = program.wait();
    EXPECT_LT(Clock::now() - killed, within(seconds(15)));
    EXPECT_NE(ending.status, 0);
    EXPECT_EQ(count(ending.err, "\nmeshtrain: ") + ending.err.starts_with("meshtrain: "), 1) << ending.err;
    expect_match(ending.err,
                 "(^|\n)meshtrain: " + escaped(mesh.name_of(rank)) +
                     R"( ended without a message: it was killed, perhaps for lack of memory; it was in .*step \d+.*; )"
                     R"(the last collective seen of it was \w+ of \[[\d, .]*\] \w+ for [\w. ]+, number \d+ of )" +
                     kGroupOrLink + "\n");
  }
}

// Ranks that are stopped for up to a second again and again, and disks and data that are slow at times; the limit is a
// fifth of that of a recipe that does not say.
TEST_P(StallTable, NobodyIsNamedForNoise) {
  const bool is_tried =
      GetParam().pp > 1 ? GetParam().tp == 1 : GetParam().tp > 1 && (GetParam().cp == 1 || GetParam().dp > 1);
  if (!is_tried) GTEST_SKIP() << "one mesh of each number of ranks, and a pipeline";
  constexpr int kSteps = 1000, kStops = 20;  // of a full run, of another
  const Mesh& mesh = GetParam();
  const std::string noise =
      "export LD_PRELOAD=" + build_folder() +
      "/tests/libfaults.so MESHTRAIN_FAULTS=\"fsync::delay=300;pread:tokens.bin:delay=400:$((20 + "
      "7 * OMPI_COMM_WORLD_RANK)):1\"";
  Words words = settings(mesh, "2");
  words.push_back("checkpoint={every: 50, keep_last: 1}");
  if (is_full_run()) words.push_back("train.steps=" + std::to_string(kSteps));
  Program program(endless(mesh.ranks(), mesh.text(), words, noise));
  wait_for_steps(5);
  std::vector<int> ranks;
  for (int rank = 0; rank < mesh.ranks(); ++rank) ranks.push_back(process_of(rank));
  std::mt19937 random(7);
  int stops = 0;
  for (const auto start = Clock::now(); is_running() && Clock::now() - start < within(seconds(400));) {
    if (!is_full_run() && stops == kStops) break;
    const int process = ranks[random() % ranks.size()];
    if (kill(process, SIGSTOP) != 0) break;
    std::this_thread::sleep_for(milliseconds(stops % 8 == 0 ? random() % 1000 : random() % 60));
    kill(process, SIGCONT);
    std::this_thread::sleep_for(milliseconds(random() % 120));
    ++stops;
  }
  if (!is_full_run()) program.signal(SIGUSR1);
  const Ending ending = program.wait();
  EXPECT_EQ(ending.status, is_full_run() ? 0 : 75) << ending.err;
  if (is_full_run()) {
    EXPECT_EQ(metrics().size(), static_cast<size_t>(kSteps));
  }
  EXPECT_TRUE(warnings_of(ending).empty()) << ending.err;
  EXPECT_EQ(ending.late, "");
  EXPECT_GE(stops, is_full_run() ? kSteps / 20 : kStops);
  std::printf("%s: %zu steps, %d stops of a rank, nobody named\n", mesh.text().c_str(), metrics().size(), stops);
  std::fflush(stdout);
}

std::vector<Mesh> meshes_of_stalls() {
  if (!is_full_run()) return {{1, 1, 2}, {1, 1, 1, 3}};
  return {{1, 1, 2}, {1, 2, 1}, {2, 1, 1}, {2, 1, 2}, {1, 2, 2}, {2, 2, 1}, {2, 2, 2}, {1, 1, 1, 4}, {2, 1, 2, 2}};
}

std::string name_of_mesh(const ::testing::TestParamInfo<Mesh>& tested) {
  const Mesh& mesh = tested.param;
  return (mesh.pp > 1 ? "pp" + std::to_string(mesh.pp) + "_" : "") + "dp" + std::to_string(mesh.dp) + "_cp" +
         std::to_string(mesh.cp) + "_tp" + std::to_string(mesh.tp);
}

INSTANTIATE_TEST_SUITE_P(Meshes, StallTable, ::testing::ValuesIn(meshes_of_stalls()), name_of_mesh);

}  // namespace
}  // namespace meshtrain::testing

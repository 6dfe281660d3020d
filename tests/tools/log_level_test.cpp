// --log-level: a command prints its output and its error line at every level.

#include <regex>

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

class LogLevelOption : public TrainProgram {
 protected:
  /// Trains in a run directory of its own, where the log has lines of the levels info and warning.
  Ending train_at(const std::string& level) {
    run_dir = path(level);
    Words words = {"--set", "model.max_position_embeddings=12", "--set", "checkpoint.every=4"};
    if (level != "default") words.insert(words.end(), {"--log-level", level});
    const Ending ending = train(1, words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending;
  }

  /// Returns how many lines of console.log have `level`.
  long kept(const std::string& level) const {
    const std::string log = content(run_dir / "console.log");
    const std::regex line(R"((^|\n)\S+ \S+ )" + level + ": ");
    return std::distance(std::sregex_iterator(log.begin(), log.end(), line), std::sregex_iterator());
  }

  const std::string warning_ =
      "meshtrain: warning: train.sequence_length 16 is beyond the model's max_position_embeddings 12\n";
};

TEST_F(LogLevelOption, PrintsItsLevelAndAboveAndConsoleLogKeepsAll) {
  for (const char* level : {"default", "info", "warning", "error", "off"}) {
    SCOPED_TRACE(level);
    const Ending ending = train_at(level);
    const bool prints_info = std::string(level) == "default" || std::string(level) == "info",
               prints_warnings = prints_info || std::string(level) == "warning";
    EXPECT_EQ(has(ending.out, "\nstep "), prints_info) << ending.out;
    EXPECT_EQ(ending.out.empty(), !prints_info) << ending.out;
    EXPECT_EQ(ending.err, prints_warnings ? warning_ : "");
    EXPECT_EQ(kept("warning"), 1);
    EXPECT_GT(kept("info"), 4);
  }
}

TEST_F(LogLevelOption, LeavesTheOutputOfACommandAsItIs) {
  train_at("off");
  const Words words = {"generate", run_dir, "--tokens", "1,2,3", "--max-tokens", "2"};
  Words quiet = words;
  quiet.insert(quiet.end(), {"--log-level", "warning"});
  const Ending loud = run_meshtrain(words), silent = run_meshtrain(quiet, {"MESHTRAIN_PROGRESS=0"});
  EXPECT_TRUE(has(loud.err, " parameters in ") && has(loud.err, " tok/s)")) << loud.err;
  EXPECT_EQ(silent.err, "") << "no progress either";
  EXPECT_EQ(silent.out, loud.out);
}

TEST_F(LogLevelOption, LeavesTheLineOfAFailedCommand) {
  const std::string missing = path("missing.yaml");
  const Words words = {"plan", missing, "--ranks", "2"};
  Words quiet = words;
  quiet.insert(quiet.end(), {"--log-level", "off"});
  EXPECT_TRUE(has(only_complaint(run_meshtrain(quiet)), missing));
  EXPECT_EQ(only_complaint(run_meshtrain(quiet)), only_complaint(run_meshtrain(words)));
  EXPECT_TRUE(
      has(complaint(2, {"--mesh", "dp=2", "--log-level", "off"}, 1, "[ $OMPI_COMM_WORLD_RANK != 0 ] || ulimit -f 1"),
          "cannot write "))
      << "at run time";
}

TEST_F(LogLevelOption, RefusesAnotherWord) {
  EXPECT_EQ(only_complaint(run_meshtrain({"data", "inspect", "x", "--log-level", "loud"})),
            "meshtrain data inspect: --log-level: \"loud\" is not a log level: give info, warning, error or off: "
            "see meshtrain data inspect --help");
}

}  // namespace
}  // namespace meshtrain::testing

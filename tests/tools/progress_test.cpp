// Every command that may take long says how far it is, on stderr, and short ones say nothing.

#include <set>
#include <sstream>

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

class ProgressOfCommands : public TrainProgram {
 protected:
  ProgressOfCommands() {
    const Ending ending = train(1, {"--set", "checkpoint.every=2"});
    EXPECT_EQ(ending.status, 0) << ending.err;
  }

  /// Expects that the command prints a line that begins with each of `lines` when each part of it is to have one, and
  /// none of them otherwise; that stdout is the same with and without them, unless `is_repeatable` is false.
  static void expect_lines(const Words& arguments, const std::vector<std::string>& lines, int ranks = 1,
                           bool is_repeatable = true) {
    SCOPED_TRACE(arguments.at(0) + " " + arguments.at(1));
    const Ending silent = start(ranks, "86400", arguments), loud = start(ranks, "0", arguments);
    EXPECT_EQ(silent.status, 0) << silent.err;
    EXPECT_EQ(loud.status, 0) << loud.err;
    for (const std::string& line : lines) {
      EXPECT_FALSE(begins(silent.err, line)) << line << "\n" << silent.err;
      EXPECT_TRUE(begins(loud.err, line)) << line << "\n" << loud.err;
    }
    EXPECT_FALSE(begins(loud.out, lines.front())) << loud.out;
    EXPECT_TRUE(!is_repeatable || silent.out == loud.out) << loud.out;
  }

  static bool begins(const std::string& text, const std::string& line) {
    return text.rfind(line, 0) == 0 || has(text, "\n" + line);
  }

  static Ending start(int ranks, const std::string& seconds, const Words& arguments) {
    Words words = {"/usr/bin/env", "MESHTRAIN_PROGRESS=" + seconds, source_folder() + "/tools/ranks",
                   std::to_string(ranks), build_folder() + "/meshtrain"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_program(words);
  }

  std::string checkpoint() const { return run_dir / "checkpoints/step-00000004"; }
};

TEST_F(ProgressOfCommands, Plan) {
  expect_lines({"plan", recipe, "--ranks", "4", "--memory", "80GiB"},
               {"plan on 4 ranks: 6 of 6 meshes", "other settings: ", "plan of " + recipe.string() + ": "});
  expect_lines({"plan", recipe, "--ranks", "2", "--machine", "h100", "--search", "all"},
               {"plan on 2 ranks: 3 of 3 meshes", "other settings: ", "plan of " + recipe.string() + ": "});
}

TEST_F(ProgressOfCommands, Calibration) {
  std::filesystem::remove(path("machine.yaml"));
  const Ending ending = start(2, "0", {"plan", recipe, "--calibrate", "--out", path("machine.yaml")});
  EXPECT_EQ(ending.status, 0) << ending.err;
  for (const char* line : {"calibration for ", "operators of the host: ", "collectives: "}) {
    EXPECT_EQ(count("\n" + ending.err, std::string("\n") + line), 1) << line << "rank 0 alone speaks\n" << ending.err;
  }
}

TEST_F(ProgressOfCommands, Verify) {
  expect_lines({"verify", recipe, "--mesh", "dp=2", "--steps", "2"},
               {"steps on one rank: 2 of 2 steps", "steps on mesh dp=2,cp=1,tp=1: 2 of 2 steps", "verification: "}, 2);
}

TEST_F(ProgressOfCommands, Checkpoints) {
  const std::string shown = "127.1 KiB of 127.1 KiB";
  expect_lines({"checkpoint", "verify", run_dir},
               {"verification of " + checkpoint() + ": " + shown, "verification of " + run_dir.string() + ": "});
  expect_lines({"checkpoint", "inspect", run_dir}, {"inspection of " + run_dir.string() + ": "});
  const std::string out = path("model");
  for (const char* seconds : {"86400", "0"}) {
    std::filesystem::remove_all(out);
    const Ending ending = start(1, seconds, {"checkpoint", "export", run_dir, out});
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(begins(ending.err, "export to " + out + ": 42.4 KiB of 42.4 KiB"), *seconds == '0') << ending.err;
  }
  const std::string imported = path("imported");
  const Ending ending = start(1, "0", {"checkpoint", "import", out, recipe, "--run-dir", imported});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.err, "import to " + imported) && has(ending.err, ": 42.4 KiB of 42.4 KiB")) << ending.err;
  const Ending resumed = start(1, "0", {"train", recipe, "--run-dir", imported, "--resume"});
  EXPECT_TRUE(begins(resumed.err, "start of the run: ")) << resumed.err;
}

TEST_F(ProgressOfCommands, ModelsThatAreUsed) {
  const std::string tokens = path("tokens.bin"), folder = checkpoint();
  expect_lines({"evaluate", run_dir, "--tokens", tokens, "--json"},
               {"weights of " + folder + ": 42.4 KiB", "evaluation of " + folder + ": ", "evaluation: "}, 1, false);
  expect_lines({"generate", run_dir, "--tokens", "1,2,3", "--max-tokens", "4", "--json"},
               {"weights of " + folder + ": 42.4 KiB", "text of prompt 1 of 1: 4 of 4 tokens"}, 1, false);
}

TEST_F(ProgressOfCommands, Data) {
  write("text.txt", "one\ntwo\nthree\n");
  const std::string out = path("made.bin"), text = path("text.txt");
  expect_lines({"data", "prepare", "--bytes", text, "--out", out},
               {"bytes for " + out + ": 0 KiB", "preparation of " + out + ": "});
  const std::string done = "preparation of " + out + ": 0 KiB of 0 KiB, ";
  expect_lines({"data", "prepare", "--text", text, "--tokenizer", "bytes", "--separator", "256", "--out", out}, {done});
  EXPECT_TRUE(
      has(start(1, "0", {"data", "prepare", "--text", text, "--tokenizer", "bytes", "--separator", "256", "--out", out})
              .err,
          "1 document, 15 tokens\n"));
  expect_lines({"data", "inspect", out}, {"ids: ", "inspection of " + out + ": "});
}

TEST_F(ProgressOfCommands, TrainAndReports) {
  expect_lines({"train", recipe, "--run-dir", path("other"), "--check"}, {"check of " + recipe.string() + ": "}, 1,
               false);
  expect_lines({"report", run_dir}, {"report: "}, 1, false);
}

}  // namespace
}  // namespace meshtrain::testing

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/scratch.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(DataCommand, PreparesAndInspects) {
  const ScratchFolder folder;
  fs::create_directories(folder.path() / "texts/deeper");
  std::ofstream(folder.path() / "texts/a.txt") << "abc";
  std::ofstream(folder.path() / "texts/deeper/b.txt") << "de";
  std::ofstream(folder.path() / "last.txt") << "f\n";
  const std::string out = folder.path() / "tokens.bin";

  const Ending prepared = run_meshtrain({"data", "prepare", "--bytes", folder.path() / "texts",
                                         folder.path() / "last.txt", "--out", out, "--dtype", "uint8"});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  EXPECT_EQ(prepared.out, out + ": 7 tokens, uint8\n");
  std::ifstream stream(out, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), "abcdef\n");

  const Ending inspected = run_meshtrain({"data", "inspect", out, "--dtype", "uint8", "--count", "3"});
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_TRUE(has(inspected.out, "7")) << inspected.out;
  EXPECT_TRUE(has(inspected.out, "97 98 99") || has(inspected.out, "97, 98, 99")) << inspected.out;
}

TEST(DataCommand, EndsDocumentsWithASeparator) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "a.txt") << "abc";
  std::ofstream(folder.path() / "b.txt") << "d";
  const std::string out = folder.path() / "tokens.bin";
  const std::vector<std::string> prepare = {
      "data", "prepare", "--bytes", folder.path() / "a.txt", folder.path() / "b.txt", "--out", out, "--separator"};
  const auto with = [&](const std::string& separator) {
    std::vector<std::string> words = prepare;
    words.push_back(separator);
    return run_meshtrain(words);
  };
  const Ending prepared = with("256");
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  EXPECT_EQ(prepared.out, out + ": 6 tokens, uint16\n");
  const Ending inspected = run_meshtrain({"data", "inspect", out, "--separator", "256"});
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_TRUE(has(inspected.out, "2 by separator 256, of 2 to 4 tokens\n")) << inspected.out;
  EXPECT_TRUE(has(inspected.out, "97 98 99 256 100 256\n")) << inspected.out;
  for (const char* separator : {"-1", "65536", "newline"}) {
    EXPECT_TRUE(has(only_complaint(with(separator)), "--separator")) << separator;
  }
}

TEST(DataCommand, RefusesWhatItCannotRead) {
  const ScratchFolder folder;
  const std::string missing = folder.path() / "missing.txt", out = folder.path() / "tokens.bin";
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"data", "prepare", "--bytes", missing, "--out", out})), missing));
  EXPECT_FALSE(fs::exists(out));
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"data", "inspect", missing})), missing));

  const std::string text = folder.path() / "odd.txt";
  std::ofstream(text) << "abc";
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"data", "inspect", text, "--dtype", "uint16"})), text));
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"data", "inspect", text, "--dtype", "int8"})), "int8"));
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"data", "prepare", "--bytes", text})), "--out is required"));
}

TEST(DataCommand, FailsWhereItCannotWrite) {
  const ScratchFolder folder;
  const fs::path text = folder.path() / "a.txt";
  std::ofstream(text) << "abc";
  const Ending ending = run_meshtrain({"data", "prepare", "--bytes", text, "--out", "/dev/null/tokens.bin"});
  EXPECT_NE(ending.status, 0);
  EXPECT_TRUE(has(only_complaint(ending, ending.status), "/dev/null/tokens.bin"));
}

}  // namespace
}  // namespace meshtrain::testing

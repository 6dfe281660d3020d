#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/runtime/training/data/megatron_files.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

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

TEST(DataCommand, SaysWhatAFileHolds) {
  const ScratchFolder folder;
  fs::create_directories(folder.path() / "my texts");
  std::ofstream(folder.path() / "my texts/a.txt") << "abc";
  std::ofstream(folder.path() / "my texts/b.cpp") << "de";
  std::ofstream(folder.path() / "my texts/c.bak") << "f";
  const std::string in = folder.path() / "my texts", out = folder.path() / "tokens.bin";
  const Ending prepared = run_meshtrain({"data", "prepare", "--bytes", in, "--out", out, "--dtype", "uint32",
                                         "--include", "*.txt", "*.cpp", "--exclude", "b.*"});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  std::ifstream stream(out + ".json");
  const nlohmann::json sidecar = nlohmann::json::parse(stream);
  EXPECT_EQ(sidecar.at("dtype"), "uint32");
  EXPECT_EQ(sidecar.at("tokens"), 3);
  const std::string command = sidecar.at("command");
  EXPECT_TRUE(
      has(command, "data prepare --bytes '" + in + "' --out " + out + " --dtype uint32 --include '*.txt' '*.cpp'"))
      << command;
  const Ending inspected = run_meshtrain({"data", "inspect", out, "--count", "3"});
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_TRUE(has(inspected.out, "made by       " + command + "\n")) << inspected.out;
  EXPECT_TRUE(has(inspected.out, "tokens        3 of 4 bytes (uint32)\n")) << "its dtype is known";
  EXPECT_TRUE(has(inspected.out, "97 98 99\n")) << inspected.out;
}

TEST(DataCommand, InspectsAMegatronFileByItsIndex) {
  const ScratchFolder folder;
  const std::string tokens = folder.path() / "theirs.bin";
  write_ids<int32_t>(tokens, {5, 6, 7, 70000, 9});
  write_file(folder.path() / "theirs.idx", megatron_fields(4, 4, {3, 2}).bytes());
  const Ending inspected = run_meshtrain({"data", "inspect", tokens});
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_TRUE(has(inspected.out, "2 by the index, of 2 to 3 tokens\n")) << inspected.out;
  EXPECT_TRUE(has(inspected.out, "5 6 7 70000 9\n")) << inspected.out;
  EXPECT_EQ(run_meshtrain({"data", "inspect", tokens, "--dtype", "megatron"}).out, inspected.out);
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

fs::path gpt2_fixture() {
  return fs::path(source_folder()) / "tests/tokenizer/fixtures/gpt2";
}

TEST(DataCommand, TokenisesText) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "a.txt") << "Hello, world!";
  std::ofstream(folder.path() / "b.jsonl") << "{\"body\": \"one\"}\n{\"body\": \"two <|endoftext|>\"}\n";
  const std::string out = folder.path() / "tokens.bin", tokenizer = gpt2_fixture();
  const std::vector<std::string> words = {"data",
                                          "prepare",
                                          "--text",
                                          folder.path() / "a.txt",
                                          folder.path() / "b.jsonl",
                                          "--field",
                                          "body",
                                          "--tokenizer",
                                          tokenizer,
                                          "--out",
                                          out};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return run_meshtrain(more);
  };
  const Ending prepared = with({});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  EXPECT_TRUE(has(prepared.out, "uint16, of 3 documents in 33 bytes of text, separator 1100\n")) << prepared.out;
  EXPECT_EQ(prepared.err, "") << "no progress of what is done at once";
  const Ending inspected = run_meshtrain(
      {"data", "inspect", out, "--tokenizer", tokenizer, "--separator", "<|endoftext|>", "--samples", "2"});
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_TRUE(has(inspected.out, "documents     4 by separator 1100")) << inspected.out;
  EXPECT_EQ(run_meshtrain({"data", "inspect", out, "--samples", "2"}).out, inspected.out)
      << "separator and tokenizer are those of the file beside it";
  EXPECT_FALSE(has(run_meshtrain({"data", "inspect", out, "--separator", "none"}).out, "documents"));
  std::filesystem::copy_file(out, folder.path() / "plain.bin");
  const Ending unknown =
      run_meshtrain({"data", "inspect", folder.path() / "plain.bin", "--separator", "<|endoftext|>"});
  EXPECT_TRUE(has(only_complaint(unknown), "is neither an id nor none: give --tokenizer to name a token by its text"));
  EXPECT_TRUE(has(inspected.out, "as text       Hello, world!<|endoftext|>one<|endoftext|>two <|endoftext|>"))
      << inspected.out;
  EXPECT_TRUE(has(with({"--separator", "none"}).out, ", no separator\n"));
  std::ofstream(folder.path() / "a.txt") << "Hello, w\xff\xferld!";
  EXPECT_TRUE(
      has(with({}).out, "of 3 documents in 34 bytes of text, 2 bytes of the files not UTF-8, separator 1100\n"));
  EXPECT_TRUE(has(with({"--separator", "7", "--dtype", "uint32"}).out,
                  "uint32, of 3 documents in 34 bytes of text, 2 bytes of the files not UTF-8, separator 7"));
  EXPECT_TRUE(
      has(only_complaint(with({"--separator", "</s>"})), "\"</s>\" is neither an id nor a token of the tokenizer"));
  EXPECT_TRUE(has(only_complaint(with({"--dtype", "uint8"})), "--dtype: uint8 cannot hold the ids of"));
  EXPECT_TRUE(
      has(only_complaint(run_meshtrain({"data", "prepare", "--text", tokenizer, "--out", out})), "--tokenizer"));
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"data", "prepare", "--out", out})), "give --text, --bytes or --chat"));
  EXPECT_TRUE(
      has(only_complaint(run_meshtrain({"data", "prepare", "--text", tokenizer, "--tokenizer", "bytes", "--out", out})),
          "no token ends documents: bytes has no eos_token"));
}

TEST(DataCommand, GoesOnAfterItWasKilled) {
  const ScratchFolder folder;
  {
    std::ofstream text(folder.path() / "text.jsonl");
    for (int i = 0; i < 250'000; ++i) {
      text << "{\"text\": \"Line " << i % 1009 * 7919 << " of a text that takes a while, " << i << ".\"}\n";
    }
  }
  const auto words = [&](const std::string& out) {
    return std::vector<std::string>{
        "data", "prepare", "--text", folder.path() / "text.jsonl", "--tokenizer", gpt2_fixture(), "--workers",
        "1",    "--out",   out};
  };
  const fs::path full = folder.path() / "whole.bin", killed = folder.path() / "killed.bin";
  ASSERT_EQ(run_meshtrain(words(full)).status, 0);
  {
    std::vector<std::string> program = words(killed);
    program.insert(program.begin(), build_folder() + "/meshtrain");
    Program running(program);
    while (!fs::exists(killed.string() + ".parts/0.tokens") && !fs::exists(killed)) usleep(1000);
    running.signal(SIGKILL);
    EXPECT_EQ(running.wait().status, 128 + SIGKILL);
  }
  EXPECT_FALSE(fs::exists(killed));
  const Ending resumed = run_meshtrain(words(killed));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_TRUE(has(resumed.err, " ready from an earlier run")) << resumed.err;
  const auto read = [](const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  EXPECT_TRUE(read(killed) == read(full)) << "another token file than that of a run that was not killed";
  EXPECT_FALSE(fs::exists(killed.string() + ".parts"));
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
  EXPECT_EQ(only_complaint(run_meshtrain({"data", "prepare", "--bytes", text, "--out", "/dev/null/tokens.bin"})),
            "cannot write /dev/null/tokens.bin: Not a directory");
}

}  // namespace
}  // namespace meshtrain::testing

#include "runtime/data/prepare.h"

#include <gtest/gtest.h>

#include "mesh/error.h"
#include "runtime/data/token_file.h"
#include "tests/runtime/data_files.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;
using testing::read_file;
using testing::ScratchFolder;
using testing::SmallDisk;
using testing::write_file;
using testing::write_ids;

std::string as_bytes(const std::filesystem::path& file, const std::string& dtype) {
  const TokenFile tokens(file, dtype);
  std::vector<int64_t> ids(static_cast<size_t>(tokens.size()));
  tokens.read(0, tokens.size(), ids.data());
  return {ids.begin(), ids.end()};
}

TEST(PrepareBytes, TakesFilesAndFoldersInOrder) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() / "text";
  write_file(folder / "b.txt", "B");
  write_file(folder / "a" / "z.txt", "Z");
  write_file(folder / "a" / "deep" / "y.txt", "Y\xff");
  write_file(folder / "build" / "x.txt", "X");
  write_file(folder / ".git" / "hidden", "H");
  write_file(folder / "a" / ".cache" / "hidden", "H");
  write_file(folder / "empty", "");
  write_file(scratch.path() / "one", "1");
  std::filesystem::create_directory_symlink(folder, folder / "loop");
  for (const char* dtype : {"uint8", "uint16", "uint32"}) {
    const auto output = scratch.path() / "tokens.bin";
    EXPECT_EQ(prepare_bytes({scratch.path() / "one", folder, scratch.path() / "one"}, output, dtype), 7);
    EXPECT_EQ(as_bytes(output, dtype), "1Y\xffZBX1") << dtype;
  }
}

TEST(PrepareBytes, TakesAHiddenFolderThatIsNamed) {
  const ScratchFolder scratch;
  write_file(scratch.path() / ".notes" / "a", "A");
  EXPECT_EQ(prepare_bytes({scratch.path() / ".notes"}, scratch.path() / "out", "uint8"), 1);
}

TEST(PrepareBytes, DoesNotReadItsOwnOutput) {
  const ScratchFolder scratch;
  write_file(scratch.path() / "a", "AB");
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(prepare_bytes({scratch.path()}, scratch.path() / "tokens.bin", "uint16"), 2);
  }
}

TEST(PrepareBytes, KeepsBlocksTogether) {
  const ScratchFolder scratch;
  std::string text((size_t{1} << 20) * 2 + 17, 'a');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i % 251);
  write_file(scratch.path() / "a", text);
  prepare_bytes({scratch.path() / "a"}, scratch.path() / "out", "uint16");
  EXPECT_EQ(as_bytes(scratch.path() / "out", "uint16"), text);
}

TEST(PrepareBytes, RefusesWhatIsMissingOrEmpty) {
  const ScratchFolder scratch;
  const auto output = scratch.path() / "out";
  write_file(output, "before");
  write_file(scratch.path() / "empty", "");
  const auto refusal = [&](const std::vector<std::filesystem::path>& inputs, const std::string& dtype) {
    return message<InputError>([&] { prepare_bytes(inputs, output, dtype); });
  };
  EXPECT_TRUE(has(refusal({scratch.path() / "none"}, "uint8"), "none: there is no such file or folder"));
  EXPECT_TRUE(has(refusal({scratch.path() / "empty"}, "uint8"), "the inputs hold no bytes"));
  EXPECT_TRUE(has(refusal({}, "uint8"), "the inputs hold no bytes"));
  EXPECT_TRUE(has(refusal({output}, "float"), "\"float\" is not one of"));
  EXPECT_EQ(read_file(output), "before");
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "out.partial"));
}

TEST(PrepareBytes, LeavesNothingOnAFullDisk) {
  const ScratchFolder scratch;
  write_file(scratch.path() / "a", std::string(100'000, 'a'));
  const auto output = scratch.path() / "out";
  std::string error;
  {
    const SmallDisk disk(50'000);
    error = message<std::runtime_error>([&] { prepare_bytes({scratch.path() / "a"}, output, "uint8"); });
  }
  EXPECT_TRUE(has(error, "cannot write " + output.string())) << error;
  EXPECT_FALSE(std::filesystem::exists(output));
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "out.partial"));
}

TEST(InspectTokens, ShowsBytesAsText) {
  const ScratchFolder scratch;
  write_ids<uint16_t>(scratch.path() / "tokens", {'h', 'i', '\n', '\\', 255, 'i', 'i', 0});
  const std::string text = inspect_tokens(scratch.path() / "tokens", "uint16", 5);
  EXPECT_TRUE(has(text, "tokens        8 of 2 bytes (uint16)\n")) << text;
  EXPECT_TRUE(has(text, "ids           0 to 255\n")) << text;
  EXPECT_TRUE(has(text, "64 to 127: 5 (62.50 %)\n")) << text;
  EXPECT_TRUE(has(text, "distinct      6\n")) << text;
  EXPECT_TRUE(has(text, "most frequent 105 (37.50 %), 0 (12.50 %), 10 (12.50 %)")) << text;
  EXPECT_TRUE(has(text, "first         104 105 10 92 255\n")) << text;
  EXPECT_TRUE(has(text, "as text       hi\\n\\\\\\xff\n")) << text;
}

TEST(InspectTokens, ShowsOtherIdsAsNumbers) {
  const ScratchFolder scratch;
  write_ids<uint32_t>(scratch.path() / "tokens", {4'000'000'000, 5, 65'536});
  const std::string text = inspect_tokens(scratch.path() / "tokens", "uint32", 100);
  EXPECT_TRUE(has(text, "ids           5 to 4000000000\n")) << text;
  EXPECT_TRUE(has(text, "2147483648 to 4294967295: 1 (33.33 %)")) << text;
  EXPECT_TRUE(has(text, "first         4000000000 5 65536\n")) << text;
  EXPECT_FALSE(has(text, "as text"));
  EXPECT_FALSE(has(inspect_tokens(scratch.path() / "tokens", "uint32", 0), "first"));
  EXPECT_NE(message<InputError>([&] { inspect_tokens(scratch.path() / "tokens", "uint32", -1); }), "");
  EXPECT_NE(message<InputError>([&] { inspect_tokens(scratch.path() / "none", "uint32", 1); }), "");
}

}  // namespace
}  // namespace meshtrain

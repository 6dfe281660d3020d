#include "runtime/text/prepare/prepare.h"

#include <gtest/gtest.h>

#include <sstream>

#include "mesh/base/error.h"
#include "runtime/text/prepare/input_files.h"
#include "runtime/training/data/token_file.h"
#include "runtime/training/data/token_sidecar.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::content;
using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::SmallDisk;
using testing::write_file;
using testing::write_ids;

std::string inspected(const std::filesystem::path& file, const std::string& dtype, int64_t count,
                      std::optional<int64_t> separator = {}, const Tokenizer* tokenizer = nullptr,
                      int64_t samples = 1) {
  std::ostringstream text;
  inspect_tokens(text, file, dtype, count, separator, tokenizer, samples);
  return text.str();
}

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
    EXPECT_EQ(prepare_bytes({scratch.path() / "one", folder}, output, dtype), 6);
    EXPECT_EQ(as_bytes(output, dtype), "1Y\xffZBX") << dtype;
  }
}

TEST(PrepareBytes, SaysBesideTheFileWhatItHolds) {
  const ScratchFolder scratch;
  write_file(scratch.path() / "a", "AB");
  const auto output = scratch.path() / "out.bin", described = scratch.path() / "out.bin.json";
  prepare_bytes({scratch.path() / "a"}, output, "uint16", 300, {}, "the command");
  const TokenSidecar sidecar = read_sidecar(output).value();
  EXPECT_EQ(sidecar.dtype, "uint16");
  EXPECT_EQ(sidecar.tokens, 3);
  EXPECT_EQ(sidecar.layout, SampleLayout::Stream);
  EXPECT_EQ(sidecar.separator, 300);
  EXPECT_EQ(sidecar.vocabulary_size, 301);
  EXPECT_EQ(sidecar.tokenizer, "bytes");
  EXPECT_EQ(sidecar.tokenizer_checksum, "bytes");
  EXPECT_EQ(sidecar.command, "the command");
  prepare_bytes({scratch.path() / "a"}, output, "uint8");
  EXPECT_EQ(read_sidecar(output)->separator, std::nullopt);
  EXPECT_EQ(read_sidecar(output)->vocabulary_size, 256);

  write_file(described, "{\"mine\": 1}");
  EXPECT_EQ(message<InputError>([&] { prepare_bytes({scratch.path() / "a"}, output, "uint16"); }),
            "data prepare describes " + output.string() + " in " + described.string() +
                ", but that is a file of another kind: name another --out, or move that file out of the way");
  EXPECT_EQ(content(described), "{\"mine\": 1}");
  EXPECT_EQ(content(output), "AB") << "as it was";
}

TEST(PrepareBytes, ReplacesADescriptionOnlyWithItsTokens) {
  const ScratchFolder scratch;
  write_file(scratch.path() / "a", std::string(100'000, 'a'));
  const auto output = scratch.path() / "out";
  prepare_bytes({scratch.path() / "a"}, output, "uint8");
  {
    const SmallDisk disk(150'000);
    EXPECT_NE(message<std::runtime_error>([&] { prepare_bytes({scratch.path() / "a"}, output, "uint16"); }), "");
  }
  EXPECT_EQ(read_sidecar(output)->dtype, "uint8") << "that of the file which is still there";
}

TEST(InputFiles, TakesThoseThatTheGlobsChoose) {
  const ScratchFolder scratch;
  for (const char* name : {"a.md", "b.txt", "docs/c.md", "docs/old/d.md", "tests/e.md", "tests/f.cpp"}) {
    write_file(scratch.path() / "in" / name, name);
  }
  const auto chosen = [&](const FileFilter& filter) {
    std::vector<std::string> names;
    for (const auto& file : input_files({scratch.path() / "in"}, scratch.path() / "out", filter)) {
      names.push_back(file.lexically_relative(scratch.path() / "in"));
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(chosen({{"*.md"}, {}}), (Names{"a.md", "docs/c.md", "docs/old/d.md", "tests/e.md"}));
  EXPECT_EQ(chosen({{"*.md", "*.txt"}, {"tests/*"}}), (Names{"a.md", "b.txt", "docs/c.md", "docs/old/d.md"}));
  EXPECT_EQ(chosen({{"docs/*"}, {"docs/old/*"}}), (Names{"docs/c.md"}));
  EXPECT_EQ(chosen({{}, {"*.md"}}), (Names{"b.txt", "tests/f.cpp"}));
  EXPECT_EQ(message<InputError>([&] {
              chosen({{"*.rst"}, {}});
            }),
            "--include and --exclude leave no file of " + (scratch.path() / "in").string() +
                ": change the globs, or leave the folder out");
  const FileFilter filter = {{"*.md", "*.rst", "b.txt"}, {"docs/*", "a.md", "*.rst", "in/*"}};
  EXPECT_EQ(unmatched_globs({scratch.path() / "in"}, scratch.path() / "out", filter),
            (Names{"--include *.rst", "--exclude *.rst", "--exclude in/*"}));
  EXPECT_EQ(unmatched_globs({scratch.path() / "in" / "tests", scratch.path() / "in" / "docs"}, scratch.path() / "out",
                            {{"e.md", "c.md"}, {}}),
            Names{})
      << "in one folder or another";
  const auto named = input_files({scratch.path() / "in" / "b.txt"}, scratch.path() / "out", {{"*.md"}, {}});
  EXPECT_EQ(named.size(), 1u) << "a file that is an input itself";
}

TEST(InputFiles, HandlesLinksByOneRule) {
  namespace fs = std::filesystem;
  const ScratchFolder scratch;
  const fs::path in = scratch.path() / "in", out = scratch.path() / "out";
  write_file(in / "a", "A");
  write_file(scratch.path() / "elsewhere" / "b", "B");
  fs::create_symlink(scratch.path() / "elsewhere" / "b", in / "to_file");
  fs::create_directory_symlink(scratch.path() / "elsewhere", in / "to_folder");
  fs::create_directory_symlink(in, in / "to_itself");
  EXPECT_EQ(input_files({in}, out), (std::vector<fs::path>{in / "a", in / "to_file"}));
  EXPECT_EQ(input_files({in / "to_folder"}, out), (std::vector<fs::path>{in / "to_folder" / "b"}));
  const auto refusal = [&](const std::vector<fs::path>& inputs, const FileFilter& filter = {}) {
    return message<InputError>([&] { input_files(inputs, out, filter); });
  };
  fs::create_symlink("loop", in / "loop");
  EXPECT_EQ(refusal({in}), "cannot read " + (in / "loop").string() +
                               ": it is a link to loop, which leads back to it: repair it, or remove it");
  EXPECT_TRUE(has(refusal({in / "loop"}), "which leads back to it"));
  EXPECT_EQ(input_files({in}, out, {{}, {"loop"}}).size(), 2u) << "a broken link that is left out";
  fs::remove(in / "loop");
  fs::create_symlink("gone", in / "dangling");
  EXPECT_TRUE(has(refusal({in}), "it is a link to gone, which does not exist"));
  fs::remove(in / "dangling");
  fs::create_symlink("a", in / "c");
  const std::string twice = (in / "a").string() + " and " + (in / "c").string() + " are the same file: leave one out";
  EXPECT_TRUE(has(refusal({in}), twice));
  EXPECT_TRUE(has(message<InputError>([&] { prepare_bytes({in}, out, "uint8"); }), twice));
  EXPECT_EQ(input_files({in}, out, {{}, {"c"}}).size(), 2u);
}

TEST(PrepareBytes, EndsEachFileThatHasBytesWithTheSeparator) {
  const ScratchFolder scratch;
  write_file(scratch.path() / "a", "AB");
  write_file(scratch.path() / "b", "");
  write_file(scratch.path() / "c", "C");
  const auto ids = [&](const std::string& dtype, int64_t separator) {
    const auto output = scratch.path() / "out";
    const int64_t written = prepare_bytes({scratch.path()}, output, dtype, separator);
    const TokenFile tokens(output, dtype);
    EXPECT_EQ(tokens.size(), written);
    std::vector<int64_t> all(static_cast<size_t>(tokens.size()));
    tokens.read(0, tokens.size(), all.data());
    return all;
  };
  EXPECT_EQ(ids("uint8", 0), (std::vector<int64_t>{'A', 'B', 0, 'C', 0}));
  EXPECT_EQ(ids("uint8", 255), (std::vector<int64_t>{'A', 'B', 255, 'C', 255}));
  EXPECT_EQ(ids("uint16", 256), (std::vector<int64_t>{'A', 'B', 256, 'C', 256}));
  EXPECT_EQ(ids("uint32", 4'000'000'000), (std::vector<int64_t>{'A', 'B', 4'000'000'000, 'C', 4'000'000'000}));
}

TEST(PrepareBytes, RefusesASeparatorThatTheFileCannotHold) {
  const ScratchFolder scratch;
  write_file(scratch.path() / "a", "AB");
  const auto refusal = [&](const std::string& dtype, int64_t separator) {
    return message<InputError>(
        [&] { prepare_bytes({scratch.path() / "a"}, scratch.path() / "out", dtype, separator); });
  };
  EXPECT_EQ(refusal("uint8", 256),
            "--separator: 256 does not fit into a file of uint8, whose ids are 0 to 255: give one of these, or use a "
            "wider --dtype");
  EXPECT_TRUE(has(refusal("uint16", 65'536), "65536 does not fit into a file of uint16, whose ids are 0 to 65535"));
  EXPECT_TRUE(has(refusal("uint32", -1), "-1 does not fit into a file of uint32, whose ids are 0 to 4294967295"));
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "out"));
  EXPECT_TRUE(has(refusal("uint32", int64_t{1} << 32), "4294967296 does not fit"));
  EXPECT_TRUE(has(message<InputError>([&] { inspected(scratch.path() / "a", "uint8", 1, 256); }), "256 does not fit"));
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
  const std::string a = scratch.path() / "a", same = scratch.path() / "." / "a";
  EXPECT_EQ(message<InputError>([&] {
              prepare_bytes({scratch.path(), same}, a, "uint16");
            }),
            "--out " + a + " is the same file as the input " + same + ": name another one to write");
  EXPECT_EQ(content(a), "AB");
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
  EXPECT_EQ(content(output), "before");
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
  const std::string text = inspected(scratch.path() / "tokens", "uint16", 5);
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
  const std::string text = inspected(scratch.path() / "tokens", "uint32", 100);
  EXPECT_TRUE(has(text, "ids           5 to 4000000000\n")) << text;
  EXPECT_TRUE(has(text, "2147483648 to 4294967295: 1 (33.33 %)")) << text;
  EXPECT_TRUE(has(text, "first         4000000000 5 65536\n")) << text;
  EXPECT_FALSE(has(text, "as text"));
  EXPECT_FALSE(has(inspected(scratch.path() / "tokens", "uint32", 0), "first"));
  EXPECT_NE(message<InputError>([&] { inspected(scratch.path() / "tokens", "uint32", -1); }), "");
  EXPECT_NE(message<InputError>([&] { inspected(scratch.path() / "none", "uint32", 1); }), "");
}

TEST(InspectTokens, ShowsSamplesAsText) {
  const ScratchFolder scratch;
  const auto bytes = load_tokenizer("bytes");
  std::vector<int64_t> ids;
  for (const char* document : {"first", "a second document", "caf\u00e9 \x1b", "four"}) {
    bytes->encode(document, ids);
    ids.push_back(256);
  }
  write_ids<uint16_t>(scratch.path() / "tokens", ids);
  const std::string text = inspected(scratch.path() / "tokens", "uint16", 8, 256, bytes.get(), 3);
  EXPECT_TRUE(has(text, "first         102 105 114 115 116 256 97 32\nas text       firsta \n")) << text;
  EXPECT_TRUE(has(text, "at 24         99 97 102")) << text;
  EXPECT_TRUE(has(text, "as text       caf\u00e9 \\x1b\n")) << text;
  EXPECT_TRUE(has(text, "at 32         102 111 117 114 256\nas text       four\n")) << text;
  EXPECT_TRUE(has(text, "unknown       ids of 256 and above are not in the tokenizer\n")) << text;
  EXPECT_TRUE(has(inspected(scratch.path() / "tokens", "uint16", 2, {}, bytes.get(), 2), "at 18         117 109"));
}

TEST(InspectTokens, MeasuresDocuments) {
  const ScratchFolder scratch;
  const auto documents = [&](const std::vector<int64_t>& ids) {
    write_ids<uint16_t>(scratch.path() / "tokens", ids);
    const std::string text = inspected(scratch.path() / "tokens", "uint16", 0, 256);
    const size_t begin = text.find("documents"), end = text.find('\n', begin);
    return begin == std::string::npos ? text : text.substr(begin, end - begin);
  };
  EXPECT_EQ(documents({1, 2, 256, 256, 3, 4, 5, 256}), "documents     3 by separator 256, of 1 to 4 tokens");
  EXPECT_EQ(documents({256, 1, 2}), "documents     2 by separator 256, of 1 to 2 tokens") << "the last has no end";
  EXPECT_EQ(documents({1, 2, 3}), "documents     1 by separator 256, of 3 to 3 tokens");
  EXPECT_FALSE(has(inspected(scratch.path() / "tokens", "uint16", 0), "documents"));
  std::vector<int64_t> long_one((size_t{1} << 16) * 2 + 3, 7);  // longer than one read
  long_one.insert(long_one.end(), {256, 7, 7});
  EXPECT_EQ(documents(long_one), "documents     2 by separator 256, of 2 to 131,076 tokens");
}

}  // namespace
}  // namespace meshtrain

#include "runtime/training/checkpoint/manifest.h"
#include "runtime/training/checkpoint/damage.h"
#include "runtime/training/checkpoint/inspect.h"
#include "runtime/training/checkpoint/manifest_writer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "mesh/base/error.h"
#include "tests/checkpoint/format_1.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

CheckpointHead head() {
  CheckpointHead head;
  head.state = {12, 96, 11, 1, TrainingState::LossScale{1024, 5}};
  head.recipe = "name: \"x\"\n";
  head.mesh = "dp=2,cp=1,tp=1";
  head.data["data.tokens"] = {100, 0xabcdef};
  return head;
}

/// Returns a rank's part of the manifest for boxes of one tensor, model.x of [4, 3].
std::string part(const std::string& file, const std::vector<Box>& boxes, const std::string& name = "model.x",
                 at::ScalarType dtype = at::kFloat) {
  ManifestPart part({file, 7});
  for (const Box& box : boxes) part.add(name, dtype, {4, 3}, box, 42);
  return part.packed();
}

const std::vector<Box> kUpper = {{{0, 0}, {2, 3}}, {{2, 0}, {1, 1}}}, kLower = {{{2, 1}, {1, 2}}, {{3, 0}, {1, 3}}};

/// Parses `text` as a manifest in a file M.
Manifest parsed(const std::string& text) {
  const testing::ScratchFolder folder;
  testing::write_file(folder.path() / "M", text);
  return parse_manifest(FileReader(folder.path() / "M"));
}

/// Returns `message` from the name M on, without its folder.
std::string without_folder(const std::string& message) {
  return message.substr(message.find("/M ") + 1);  // npos + 1 is 0
}

std::string complaint(const std::string& text) {
  try {
    parsed(text);
  } catch (const InputError& error) {
    return without_folder(error.what());
  }
  return "";
}

std::string complaint_of(const std::vector<std::string>& parts) {
  return complaint(manifest_text(head(), parts));
}

/// Returns `text` with `from` replaced, and the checksum corrected.
std::string changed(const std::string& text, const std::string& from, const std::string& to) {
  std::string other = text.substr(0, text.rfind(",\n \"xxh3\""));
  const size_t at = other.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  other.replace(at, from.size(), to);
  return other + ",\n \"xxh3\": \"" + checksum_text(checksum(other.data(), other.size())) + "\"\n}\n";
}

TEST(Manifest, OfStep0HasWeightsAlone) {
  CheckpointHead start = head();
  start.state = {};
  const std::vector<std::string> parts = {part("a", kUpper), part("b", kLower)};
  EXPECT_EQ(complaint(manifest_text(start, parts)), "");
  start.state.num_updates = 1;
  EXPECT_EQ(complaint(manifest_text(start, parts)),
            "M is damaged: it is of step 0, but has trained samples, updates, skipped steps or a loss scale");
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest read = parsed(manifest_text(head(), {part("a", kUpper), "", part("b", kLower)}));
  const CheckpointHead expected = head();
  EXPECT_EQ(read.head.state.step, 12);
  EXPECT_EQ(read.head.state.num_samples, 96);
  EXPECT_EQ(read.head.state.num_updates, 11);
  EXPECT_EQ(read.head.state.num_skipped, 1);
  ASSERT_TRUE(read.head.state.loss_scale.has_value());
  EXPECT_EQ(read.head.state.loss_scale->value, 1024);
  EXPECT_EQ(read.head.state.loss_scale->num_finite, 5);
  EXPECT_EQ(read.head.recipe, expected.recipe);
  EXPECT_EQ(read.head.mesh, expected.mesh);
  EXPECT_EQ(read.head.data, expected.data);
  EXPECT_TRUE(read.head.versions.contains("meshtrain") && read.head.versions.contains("torch"));
  ASSERT_EQ(read.files.size(), 2u);
  EXPECT_EQ(read.files[1].name, "b");
  EXPECT_EQ(read.files[1].header, 7u);
  const StoredTensor& tensor = read.tensors.at("model.x");
  EXPECT_EQ(tensor.dtype, at::kFloat);
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{4, 3}));
  ASSERT_EQ(tensor.pieces.size(), 4u);
  EXPECT_EQ(tensor.pieces[2].box, kLower[0]);
  EXPECT_EQ(tensor.pieces[2].file, 1u);
  EXPECT_EQ(tensor.pieces[2].checksum, 42u);
  EXPECT_EQ(read.num_bytes(), 48);
}

TEST(Manifest, OfFormat1SaysTheSame) {
  const std::string text = manifest_text(head(), {part("a", kUpper), part("b", kLower)});
  const std::string old = testing::format_1_text(parsed(text));
  ASSERT_NE(
      old.find(R"({"name":"a","header":"0000000000000007","tensors":{"model.x":{"dtype":"F32","shape":[4,3],"pieces":)"
               R"([{"start":[0,0],"size":[2,3],"xxh3":"000000000000002a"},)"),
      std::string::npos);
  EXPECT_EQ(testing::format_1_text(parsed(old)), old);
  EXPECT_EQ(complaint(changed(old, "[2,3]", "[2,4]")), "M is damaged: a piece of model.x does not lie in [4, 3]");
  EXPECT_EQ(complaint(changed(old, "[2,3]", "[2]")), "M is damaged: a piece of model.x does not lie in [4, 3]");
  EXPECT_EQ(complaint(changed(old, "F32", "F16")), "M is damaged: model.x has another dtype or shape in b");
  EXPECT_EQ(complaint(changed(old, "000000000000002a", "000000000000002A")),
            "M is damaged: \"xxh3\" of a piece of model.x is not a checksum of 16 hexadecimal digits");
}

TEST(Manifest, LinesOfItMayBeLongerThanWhatIsReadAtOnce) {
  const testing::ScratchFolder folder;
  const std::filesystem::path path = folder.path() / "manifest.json";
  CheckpointHead long_head = head();
  long_head.recipe = std::string(20 << 20, 'x');
  const std::string text = manifest_text(long_head, {part("a", kUpper), part("b", kLower)});
  std::ofstream(path) << text;
  const Manifest read = parse_manifest(FileReader(path));
  EXPECT_EQ(read.head.recipe, long_head.recipe);
  EXPECT_EQ(read.tensors.at("model.x").pieces.size(), 4u);
}

TEST(Manifest, PiecesThatAreNotTheWholeTensorAreRefused) {
  EXPECT_EQ(complaint_of({part("a", kUpper)}), "M is damaged: the pieces of model.x lack some of its 12 elements");
  EXPECT_EQ(complaint_of({part("a", kUpper), part("b", kUpper)}),
            "M is damaged: the pieces of model.x have more than its 12 elements");
}

TEST(Manifest, OverlapsAndBoxesOutsideAreRefused) {
  const std::vector<Box> twice = {{{0, 0}, {2, 3}}, {{1, 0}, {2, 3}}};
  EXPECT_EQ(complaint_of({part("a", twice)}), "M is damaged: pieces [0:2, 0:3] and [1:3, 0:3] of model.x overlap");
  EXPECT_EQ(complaint_of({part("a", {{{3, 0}, {2, 3}}})}), "M is damaged: a piece of model.x does not lie in [4, 3]");
  EXPECT_EQ(complaint_of({part("a", {{{0, 0}, {0, 3}}})}), "M is damaged: a piece of model.x does not lie in [4, 3]");
}

TEST(Manifest, WhatRanksSayDifferentlyIsRefused) {
  try {
    complaint_of({part("a", kUpper), part("b", kLower, "model.x", at::kHalf)});
    FAIL() << "it was written";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "model.x has another dtype or shape in b");
  }
  EXPECT_EQ(complaint_of({part("a", kUpper), part("a", kLower)}), "M is damaged: it names a twice");
}

TEST(Manifest, OneOfALaterVersionIsNotCalledDamaged) {
  const std::string text =
      changed(manifest_text(head(), {part("a", kUpper), part("b", kLower)}), "\"format\": 2", "\"format\": 3");
  try {
    parsed(text);
    FAIL() << "it was read";
  } catch (const NewerCheckpoint& error) {
    EXPECT_EQ(without_folder(error.what()),
              "M was written by a newer meshtrain, in format 3; this one reads up to 2: use the version that wrote it");
  }
}

TEST(Manifest, OtherValuesAreRefused) {
  const std::string text = manifest_text(head(), {part("a", kUpper), part("b", kLower)});
  ASSERT_EQ(complaint(text), "");
  const auto refused = [&](const std::string& from, const std::string& to) {
    return complaint(changed(text, from, to));
  };
  EXPECT_EQ(refused("\"format\": 2", "\"format\": 0"), "M is damaged: its format is 0, but the first format is 1");
  EXPECT_EQ(refused("\"step\": 12", "\"step\": -12"), "M is damaged: \"step\" of it is not a whole number");
  EXPECT_EQ(refused("\"step\": 12", "\"step\": 1.5"), "M is damaged: \"step\" of it is not a whole number");
  EXPECT_EQ(refused("\"samples\": 96", "\"sample\": 96"), "M is damaged: it has no \"samples\"");
  EXPECT_EQ(refused("\"name\":\"a\"", "\"name\":\"../a\""),
            "M is damaged: \"../a\" is not the name of a file in the same folder");
  EXPECT_EQ(refused("\"F32\"", "\"F3\""), "M is damaged: model.x has dtype F3, which is not known");
  EXPECT_EQ(refused("[4,3]", "[9000000000,9000000000]").substr(0, 20), "M is damaged: model.");
  EXPECT_EQ(refused("000000000000002a", "000000000000002A"), "M is damaged: a piece of model.x in a has no checksum");
  EXPECT_EQ(refused("000000000000002a", ""), "M is damaged: a piece of model.x in a has no checksum");
  EXPECT_EQ(refused("000000000000002a", "000000000000002a000000000000002a"),
            "M is damaged: a has more checksums than its 2 pieces");
  EXPECT_EQ(refused("[0,0,0,2,3,", "[1,0,0,2,3,"), "M is damaged: a piece of a belongs to a tensor that is not listed");
  EXPECT_EQ(refused("2,0,1,1]", "2,0,1]"), "M is damaged: the pieces of a end in the middle of one");
  EXPECT_EQ(refused("[0,0,0,2,3,", "[0,0,0,2.5,3,"), "M is damaged: \"pieces\" of a file is not a whole number");
  EXPECT_NE(refused("{", "[{").find("M is damaged: it is not valid JSON"), std::string::npos);
  EXPECT_EQ(complaint(std::string()), "M is damaged: it was cut short: it does not end with its checksum");
}

TEST(Manifest, NoByteOfItChangesUnseen) {
  const std::string text = manifest_text(head(), {part("a", kUpper), part("b", kLower)});
  std::mt19937_64 generator(3);
  for (size_t at = 0; at < text.size(); ++at) {
    std::string other = text;
    other[at] = static_cast<char>(other[at] ^ (1 << generator() % 8));
    EXPECT_NE(complaint(other), "") << at;
    EXPECT_NE(complaint(text.substr(0, at)), "") << at;
  }
}

/// Any text with a right checksum is read or refused, and nothing else happens.
TEST(Manifest, AnyTextIsReadOrRefused) {
  if (testing::world().size() > 1) GTEST_SKIP() << "one rank is as good as many";
  const std::string text = manifest_text(head(), {part("a", kUpper), part("b", kLower)});
  const std::string body = text.substr(0, text.rfind(",\n \"xxh3\""));
  const std::vector<std::string> words = {"-1",
                                          "1e300",
                                          "9223372036854775807",
                                          "18446744073709551615",
                                          "null",
                                          "{}",
                                          "[]",
                                          "[[",
                                          "\"",
                                          "\\u0000",
                                          "true",
                                          ",",
                                          "0",
                                          "\xff"};
  std::mt19937_64 generator(5);
  int read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string other = body;
    for (uint64_t changes = 1 + generator() % 3; changes > 0; --changes) {
      const size_t begin = generator() % other.size(), length = generator() % 6;
      other.replace(begin, length, generator() % 4 == 0 ? "" : words[generator() % words.size()]);
    }
    read += complaint(changed(other + ",\n \"xxh3\"", "", "")).empty();
  }
  EXPECT_GT(read, 0) << "some changes are harmless";
  const std::string deep(1'000'000, '[');
  EXPECT_NE(complaint(changed(deep + ",\n \"xxh3\"", "", "")), "");
}

TEST(Manifest, NamesOfParametersMayEndInAnything) {
  const testing::ScratchFolder folder;
  const std::vector<Box> all = {{{0, 0}, {4, 3}}};
  std::vector<std::string> parts;
  for (const char* name : {"gain", "gain.exp_avg", "a.in_proj_weight", "a.in_proj_weight.exp_avg"}) {
    parts.push_back(part(std::string(name) + ".safetensors", all, name));
  }
  testing::write_file(folder.path() / "manifest.json", manifest_text(head(), parts));
  const std::string text = inspect_checkpoint(folder.path(), /*pieces=*/false);
  EXPECT_NE(text.find("\n  exp_avg in F32: 2 tensors"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  weights in F32: 2 tensors"), std::string::npos) << text;
}

}  // namespace
}  // namespace meshtrain

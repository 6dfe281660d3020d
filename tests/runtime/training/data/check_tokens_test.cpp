#include "runtime/training/data/check_tokens.h"
#include "runtime/program/recipe/check_data.h"

#include <gtest/gtest.h>

#include <sstream>

#include "mesh/base/error.h"
#include "runtime/text/prepare/prepare.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/training/data/dataset.h"
#include "runtime/training/data/packed_writer.h"
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
using testing::write_file;
using testing::write_ids;

/// Returns sidecar_lines(), with "warning: " before those that are warnings.
std::vector<std::string> lines_of(const Recipe& recipe, const std::string& tokenizer) {
  std::vector<std::string> lines;
  for (const Notice& notice : sidecar_lines(recipe, tokenizer)) {
    lines.push_back((notice.is_warning ? "warning: " : "") + notice.line);
  }
  return lines;
}

class CheckSidecars : public ::testing::Test {
 protected:
  CheckSidecars() {
    write_ids<uint16_t>(tokens_, {1, 2, 3});
    write_sidecar(tokens_, sidecar_);
    recipe_.data.tokens = tokens_;
    recipe_.data.dtype = "uint16";
    recipe_.model.shape.vocab_size = 1000;
    recipe_.locations = {{"", "r.yaml"}, {"data.tokens", "r.yaml:7:11: data.tokens"}};
  }

  std::string refusal() const {
    return message<InputError>([&] { check_sidecars(recipe_); });
  }

  ScratchFolder scratch_;
  std::filesystem::path tokens_ = scratch_.path() / "t.bin";
  TokenSidecar sidecar_{.dtype = "uint16",
                        .tokens = 3,
                        .separator = 999,
                        .vocabulary_size = 1000,
                        .tokenizer = "/models/mine",
                        .tokenizer_checksum = "00ff",
                        .command = "meshtrain data prepare"};
  Recipe recipe_;
};

TEST_F(CheckSidecars, TakesFilesThatAreAsTheySay) {
  EXPECT_EQ(refusal(), "");
  std::filesystem::remove(sidecar_path(tokens_));
  recipe_.data.dtype = "uint8";
  EXPECT_EQ(refusal(), "") << "without a sidecar";
  write_file(sidecar_path(tokens_), "[1, 2]");
  EXPECT_EQ(refusal(), "") << "another program's file";
  write_file(sidecar_path(tokens_), "7");
  EXPECT_EQ(refusal(), "");
  write_file(sidecar_path(tokens_), "{\"format\": \"theirs\"}");
  EXPECT_EQ(refusal(), "");
  recipe_.data.tokens = scratch_.path() / "none";
  EXPECT_EQ(refusal(), "");
}

TEST_F(CheckSidecars, RefusesAnotherDtype) {
  recipe_.data.dtype = "uint32";
  const std::string file = tokens_.string();
  EXPECT_EQ(refusal(), "r.yaml:7:11: data.tokens: " + file + " would be read as uint32, but holds uint16, as " + file +
                           ".json says: set data.dtype: uint16");
  recipe_.locations["data.dtype"] = "r.yaml:8:10: data.dtype";
  EXPECT_TRUE(refusal().starts_with("r.yaml:8:10: data.dtype: ")) << refusal();
  recipe_.locations.clear();
  EXPECT_TRUE(refusal().starts_with("data.dtype: ")) << refusal();
}

TEST_F(CheckSidecars, RefusesAnotherNumberOfTokens) {
  write_ids<uint16_t>(tokens_, {1, 2});
  EXPECT_EQ(refusal(), "r.yaml:7:11: data.tokens: " + tokens_.string() +
                           " has 4 bytes, but 3 tokens of uint16, which " + tokens_.string() +
                           ".json says, are 6: the file was cut short or replaced; prepare it again, or remove the "
                           ".json file");
}

TEST_F(CheckSidecars, RefusesAModelWithoutTheTokenizersIds) {
  recipe_.model.shape.vocab_size = 999;
  recipe_.locations["model.vocab_size"] = "r.yaml:3:3: model.vocab_size";
  EXPECT_EQ(refusal(), "r.yaml:3:3: model.vocab_size: the model's vocab_size is 999, but " + tokens_.string() +
                           " was made with ids up to 999, of the tokenizer /models/mine, as " + tokens_.string() +
                           ".json says: use a model.vocab_size of 1000 or more, or prepare the data with the model's "
                           "tokenizer");
}

TEST_F(CheckSidecars, RefusesAnotherSeparator) {
  recipe_.data.documents = 999;
  EXPECT_EQ(refusal(), "");
  recipe_.data.documents = 7;
  recipe_.locations["data.documents"] = "r.yaml:9:14: data.documents";
  EXPECT_EQ(refusal(), "r.yaml:9:14: data.documents: documents of " + tokens_.string() +
                           " would end with the id 7, but each ends with 999, as " + tokens_.string() +
                           ".json says: set data.documents: 999");
  sidecar_.separator.reset();
  write_sidecar(tokens_, sidecar_);
  EXPECT_EQ(refusal(), "") << "nothing was written between documents; what the text has is not known";
}

TEST_F(CheckSidecars, TakesAnotherTokenizerWithAWarningWhereItHasTheSameIds) {
  const std::string other = testing::source_folder() + "/tests/tokenizer/fixtures/gpt2";
  const auto with = [&](const std::string& tokenizer) {
    return message<InputError>([&] { check_sidecars(recipe_, tokenizer); });
  };
  recipe_.model.shape.vocab_size = 2000;
  EXPECT_EQ(with("/nothing"), "");
  EXPECT_EQ(with(other), "r.yaml: data.tokenizer: the run's tokenizer is " + other + ", with ids up to 1100, but " +
                             tokens_.string() + " was made with /models/mine, with ids up to 999, as " +
                             tokens_.string() +
                             ".json says: set data.tokenizer: /models/mine, or prepare the data with the other one");
  sidecar_.vocabulary_size = 1101;
  write_sidecar(tokens_, sidecar_);
  EXPECT_EQ(with(other), "");
  recipe_.data.layout = SampleLayout::Stream;
  EXPECT_EQ(lines_of(recipe_, other),
            std::vector<std::string>{"warning: the run's tokenizer is " + other + ", but " + tokens_.string() +
                                     " was made with /models/mine, whose checksum was 00ff: set data.tokenizer to "
                                     "that one, or prepare the data again"});
  sidecar_.tokenizer_checksum = tokenizer_fingerprint(other);
  write_sidecar(tokens_, sidecar_);
  EXPECT_TRUE(lines_of(recipe_, other).empty());
}

TEST_F(CheckSidecars, GiveTheLayoutThatARecipeDoesNotSet) {
  recipe_.evaluate.tokens = tokens_;
  Recipe sets = recipe_;
  take_layouts(recipe_);
  EXPECT_EQ(recipe_.data.layout, SampleLayout::Stream);
  EXPECT_EQ(recipe_.evaluate.layout, SampleLayout::Stream);
  const std::string file = tokens_.string() + ".json";
  EXPECT_EQ(lines_of(recipe_, ""), (std::vector<std::string>{"data.layout: stream, as " + file + " says",
                                                             "evaluate.layout: stream, as " + file + " says"}));
  sets.locations["data.layout"] = "r.yaml:9:3: data.layout";
  take_layouts(sets);
  EXPECT_EQ(sets.data.layout, SampleLayout::Records);
  EXPECT_EQ(sets.evaluate.layout, SampleLayout::Records);
  EXPECT_EQ(lines_of(sets, "").at(0), "warning: data.layout: " + tokens_.string() + " is read as records, but " + file +
                                          " says stream: set data.layout: stream");
  Recipe plain;
  plain.data.tokens = scratch_.path() / "plain.bin";
  write_ids<uint16_t>(plain.data.tokens, {1, 2, 3});
  take_layouts(plain);
  EXPECT_EQ(plain.data.layout, SampleLayout::Records) << "without a sidecar";
}

TEST_F(CheckSidecars, LooksAtEverySourceAndTheHeldOutFile) {
  const std::filesystem::path plain = scratch_.path() / "plain.bin";
  write_ids<uint16_t>(plain, {1, 2, 3});
  MixedSource first, second;
  first.tokens = plain;
  second.tokens = tokens_;
  first.dtype = second.dtype = "uint32";
  recipe_.data.mixture = {first, second};
  EXPECT_TRUE(has(refusal(), "set data.mixture[1].dtype: uint16")) << refusal();
  recipe_.data.mixture.clear();
  EXPECT_EQ(refusal(), "");
  recipe_.evaluate.tokens = tokens_;
  recipe_.evaluate.dtype = "uint8";
  EXPECT_TRUE(has(refusal(), "set evaluate.dtype: uint16")) << refusal();
}

TEST_F(CheckSidecars, RefusesADamagedOne) {
  const std::string full = content(sidecar_path(tokens_));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = full;
    text.replace(text.find(from), from.size(), to);
    write_file(sidecar_path(tokens_), text);
    return refusal();
  };
  const std::string file = tokens_.string() + ".json: ";
  const std::string advice = ": data prepare does not write this; prepare the tokens again, or remove the file";
  EXPECT_EQ(with("\"tokens\": 3", "\"tokens\": -3"), file + "\"tokens\" is not a whole number of at least 0" + advice);
  EXPECT_EQ(with("\"tokens\": 3,", ""), file + "\"tokens\" is missing" + advice);
  EXPECT_EQ(with("\"uint16\"", "\"float\""), file + "\"dtype\" is not one of uint8, uint16, uint32" + advice);
  EXPECT_EQ(with("\"stream\"", "\"river\""), file + "\"layout\" is neither records nor stream" + advice);
  EXPECT_EQ(with("\"uint16\"", "7"), file + "\"dtype\" is not a string" + advice);
  EXPECT_EQ(with("\"version\": 1", "\"version\": 2"),
            file + "\"version\" is 2, but only version 1 is supported" + advice);
  EXPECT_TRUE(has(with("{", ""), "t.bin.json is not valid JSON"));
  EXPECT_EQ(with("\"format\": \"meshtrain tokens\",", ""), file + "\"format\" is missing" + advice);
  for (const char* cut : {"", "{\"a\":", "{\"format\": \"mesh"}) {
    write_file(sidecar_path(tokens_), cut);
    EXPECT_TRUE(has(refusal(), "t.bin.json is not valid JSON") && has(refusal(), advice)) << cut << ": " << refusal();
    EXPECT_EQ(message<InputError>([&] { take_layouts(recipe_); }), refusal());
  }
}

/// A recipe that reads packed conversations, and the files that they are.
class PackedRecipe : public ::testing::Test {
 protected:
  PackedRecipe() {
    PackedWriter writer(tokens_, "int32", 5, 0, true);
    writer.add({7, 8}, {0, 1});
    writer.add({9, 6}, {0, 1});
    TokenSidecar origin;
    origin.vocabulary_size = 1000;
    origin.tokenizer = "/models/mine";
    writer.finish(origin);
    for (SourceOptions* source :
         {static_cast<SourceOptions*>(&recipe_.data), static_cast<SourceOptions*>(&recipe_.evaluate)}) {
      source->tokens = tokens_;
      source->dtype = "megatron";
      source->layout = SampleLayout::Records;
      source->documents = kDocumentsOfIndex;
      source->loss_mask = mask_;
    }
    recipe_.model.shape.vocab_size = 1000;
    recipe_.train.sequence_length = 4;
  }

  std::string refusal() const {
    return message<InputError>([&] { check_sidecars(recipe_); });
  }

  ScratchFolder scratch_;
  std::filesystem::path tokens_ = scratch_.path() / "c.bin", mask_ = scratch_.path() / "c.mask";
  Recipe recipe_;
};

TEST_F(PackedRecipe, IsAsTheSidecarSays) {
  const std::optional<TokenSidecar> sidecar = read_sidecar(tokens_);
  ASSERT_TRUE(sidecar);
  EXPECT_EQ(sidecar->dtype, "int32");
  EXPECT_EQ(sidecar->data_dtype(), "megatron");
  EXPECT_EQ(sidecar->tokens, 5);
  EXPECT_EQ(sidecar->layout, SampleLayout::Records);
  EXPECT_EQ(sidecar->index, "c.idx");
  EXPECT_EQ(sidecar->loss_mask, "c.mask");
  EXPECT_EQ(sidecar->sequence_length, 4);
  EXPECT_EQ(sidecar->samples, 2);
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(lines_of(recipe_, "").empty());
}

TEST_F(PackedRecipe, IsRefusedWhereItReadsOtherwise) {
  const std::string says = ", as " + tokens_.string() + ".json says: ";
  recipe_.train.sequence_length = 2;
  EXPECT_EQ(refusal(), "train.sequence_length: 2, but the records of " + tokens_.string() + " are sequences of 4" +
                           says + "set train.sequence_length: 4, or prepare the data with --sequence-length 2");
  recipe_.data.layout = recipe_.evaluate.layout = SampleLayout::Stream;
  EXPECT_EQ(refusal(), "") << "a stream is cut anywhere";
  recipe_.data.dtype = "uint32";
  EXPECT_EQ(refusal(), "data.dtype: " + tokens_.string() +
                           " would be read as uint32, but holds tokens with the index " + "c.idx" + says +
                           "set data.dtype: megatron");
  recipe_.data.dtype = "megatron";
  recipe_.model.shape.vocab_size = 999;
  EXPECT_TRUE(has(refusal(), "use a model.vocab_size of 1000 or more")) << refusal();
  write_ids<int32_t>(tokens_, {7, 8, 9, 0});
  EXPECT_TRUE(has(refusal(), "has 16 bytes, but 5 tokens of int32")) << refusal();
}

TEST_F(PackedRecipe, IsNoStreamWithoutASidecarEither) {
  std::filesystem::remove(sidecar_path(tokens_));
  const std::string error = message<InputError>([&] { Dataset(recipe_.data, 2, 1000, 1); });
  EXPECT_TRUE(has(error, "or has records of another length: set the train.sequence_length that it was made with"))
      << error;
  recipe_.data.loss_mask.clear();
  EXPECT_TRUE(has(message<InputError>([&] { Dataset(recipe_.data, 2, 1000, 1); }), "or is a stream"));
}

TEST_F(PackedRecipe, TakesTheLayoutOfTheSidecar) {
  recipe_.data.layout = recipe_.evaluate.layout = SampleLayout::Stream;  // as in Megatron's files
  const std::string file = tokens_.string() + ".json";
  EXPECT_EQ(lines_of(recipe_, "").at(0), "warning: data.layout: " + tokens_.string() + " is read as stream, but " +
                                             file + " says records: set data.layout: records");
  take_layouts(recipe_);
  EXPECT_EQ(recipe_.data.layout, SampleLayout::Records);
  EXPECT_EQ(recipe_.evaluate.layout, SampleLayout::Records);
  EXPECT_EQ(lines_of(recipe_, "").at(0), "data.layout: records, as " + file + " says");
}

TEST_F(PackedRecipe, IsWarnedAboutFilesThatItDoesNotUse) {
  const auto use = [&](bool mask, bool index) {
    for (SourceOptions* source :
         {static_cast<SourceOptions*>(&recipe_.data), static_cast<SourceOptions*>(&recipe_.evaluate)}) {
      source->loss_mask = mask ? mask_ : std::filesystem::path();
      source->documents = index ? std::optional(kDocumentsOfIndex) : std::nullopt;
    }
    return lines_of(recipe_, "");
  };
  const auto mask = [&](const std::string& key) {
    return "warning: " + key + ".loss_mask: every label of " + tokens_.string() + " counts, but " + mask_.string() +
           " is a loss mask for it: set " + key + ".loss_mask: " + mask_.string();
  };
  const auto index = [&](const std::string& key) {
    return "warning: " + key + ".documents: " + tokens_.string() +
           " holds several samples in a sequence, and attention crosses their bounds, which are in " +
           (scratch_.path() / "c.idx").string() + ": set " + key + ".documents: index";
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(use(false, true), (Lines{mask("data"), mask("evaluate")}));
  EXPECT_EQ(use(true, false), (Lines{index("data"), index("evaluate")}));
  EXPECT_EQ(use(false, false), (Lines{mask("data"), index("data"), mask("evaluate"), index("evaluate")}));
  TokenSidecar sidecar = read_sidecar(tokens_).value();
  sidecar.samples = 1;
  write_sidecar(tokens_, sidecar);
  EXPECT_TRUE(use(true, false).empty()) << "one sample in each record";
  std::filesystem::remove(sidecar_path(tokens_));
  EXPECT_EQ(use(false, false).size(), 4U) << "without a sidecar the mask beside the tokens tells";
  std::filesystem::remove(mask_);
  EXPECT_TRUE(use(false, false).empty()) << "a file of Megatron, whose documents may see each other";
}

std::optional<std::string> seen_in(const std::filesystem::path& file, const std::string& dtype) {
  return other_dtype(TokenFile(file, dtype));
}

TEST(OtherDtype, SeesIdsOfAnotherWidth) {
  const ScratchFolder scratch;
  const auto file = scratch.path() / "t.bin";
  std::vector<int64_t> small, large;
  for (int64_t i = 0; i < 200'000; ++i) {
    small.push_back(i * 7919 % 50'000);
    large.push_back(i * 7919 % 150'000);
  }
  write_ids<uint32_t>(file, small);
  EXPECT_EQ(seen_in(file, "uint16"), "uint32");
  EXPECT_EQ(seen_in(file, "uint32"), std::nullopt);
  write_ids<uint32_t>(file, large);
  EXPECT_EQ(seen_in(file, "uint16"), "uint32") << "upper halves of 0 to 2";
  EXPECT_EQ(seen_in(file, "uint32"), std::nullopt);
  write_ids<uint16_t>(file, small);
  EXPECT_EQ(seen_in(file, "uint16"), std::nullopt);
  EXPECT_EQ(seen_in(file, "uint32"), "uint16");
  EXPECT_EQ(seen_in(file, "uint8"), std::nullopt);
  write_ids<uint16_t>(file, std::vector<int64_t>(1000, 0));
  EXPECT_EQ(seen_in(file, "uint16"), std::nullopt) << "nothing but zeros";
  write_ids<uint16_t>(file, {1, 0, 2, 0});
  EXPECT_EQ(seen_in(file, "uint16"), std::nullopt) << "too few to say";
  for (int64_t& id : small) id %= 8;
  write_ids<uint16_t>(file, small);
  EXPECT_EQ(seen_in(file, "uint16"), std::nullopt) << "a small vocabulary";
}

TEST(OtherDtype, SeesInt64AndIdsReadAsBytes) {
  const ScratchFolder scratch;
  const auto file = scratch.path() / "t.bin";
  std::vector<int64_t> small, large, bytes;
  for (int64_t i = 0; i < 200'003; ++i) {
    small.push_back(i * 7919 % 50'000);
    large.push_back(i * 7919 % 150'000);
    bytes.push_back(i * 7919 % 256);
  }
  for (const std::vector<int64_t>& ids : {small, large}) {
    write_ids<int64_t>(file, ids);
    for (const char* dtype : {"uint8", "uint16", "uint32"}) EXPECT_EQ(seen_in(file, dtype), "int64") << dtype;
    write_ids<uint32_t>(file, ids);
    EXPECT_EQ(seen_in(file, "uint8"), "uint32");
  }
  write_ids<uint16_t>(file, bytes);
  EXPECT_EQ(seen_in(file, "uint8"), "uint16") << "every second byte is 0";
  for (int64_t& id : small) id %= 4000;
  write_ids<uint16_t>(file, small);
  EXPECT_EQ(seen_in(file, "uint8"), "uint16") << "every second byte is small";
  write_ids<uint8_t>(file, bytes);
  EXPECT_EQ(seen_in(file, "uint8"), std::nullopt);
  for (int64_t& id : bytes) id %= 4;
  write_ids<uint8_t>(file, bytes);
  EXPECT_EQ(seen_in(file, "uint8"), std::nullopt) << "a small vocabulary";
  write_file(file, std::string(5000, 'a'));
  EXPECT_EQ(seen_in(file, "uint8"), std::nullopt) << "text";
}

TEST(OtherDtype, Int64IsNotAdvised) {
  const ScratchFolder scratch;
  SourceOptions source;
  source.tokens = scratch.path() / "t.bin";
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 1000; ++i) ids.push_back(1 + i * 7 % 900);
  write_ids<int64_t>(source.tokens, ids);
  for (const auto& [dtype, found] : {std::pair("uint16", "three of four ids are 0 or small"),
                                     {"uint32", "every second id is 0"},
                                     {"uint8", "its upper bytes are 0 or small"}}) {
    source.dtype = dtype;
    EXPECT_EQ(dtype_warning(source, "data").text(),
              "data.dtype: " + source.tokens.string() + " is read as " + dtype + ", but " + found +
                  ", as if it held int64, which is not read: write the ids as uint32 if it does");
  }
  std::ostringstream shown;
  inspect_tokens(shown, source.tokens, "uint32", 4, std::nullopt, nullptr, 1);
  EXPECT_TRUE(has(shown.str(), "looks like    int64, which is not read: write the ids as uint32\n")) << shown.str();
}

TEST(OtherDtype, IsNamedWhereIdsAreBeyondTheVocabulary) {
  const ScratchFolder scratch;
  SourceOptions source;
  source.tokens = scratch.path() / "t.bin";
  source.dtype = "uint32";
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 1000; ++i) ids.push_back(1 + i % 900);
  write_ids<uint16_t>(source.tokens, ids);
  const std::string refusal = message<InputError>([&] { Dataset(source, 4, 1000, 1); });
  EXPECT_TRUE(has(refusal, "or data.dtype is wrong: its ids look like those of uint16")) << refusal;
}

TEST(OtherDtype, IsWarnedAboutWithoutASidecar) {
  const ScratchFolder scratch;
  SourceOptions source;
  source.tokens = scratch.path() / "t.bin";
  source.dtype = "uint16";
  write_ids<uint32_t>(source.tokens, std::vector<int64_t>(100, 7));
  EXPECT_EQ(
      dtype_warning(source, "data").text(),
      "data.dtype: " + source.tokens.string() +
          " is read as uint16, but every second id is 0 or small, as if it held uint32: set data.dtype: uint32 if "
          "it does");
  TokenSidecar sidecar;
  sidecar.dtype = "uint16";
  sidecar.tokens = 200;
  write_sidecar(source.tokens, sidecar);
  EXPECT_EQ(dtype_warning(source, "data").text(), "") << "its sidecar knows";
}

TEST(CheckLabels, RefusesAFileWithoutALabelThatCounts) {
  const ScratchFolder scratch;
  Recipe recipe;
  recipe.data.tokens = scratch.path() / "t.bin";
  recipe.data.dtype = "uint8";
  recipe.data.layout = SampleLayout::Records;
  recipe.data.loss_mask = scratch.path() / "mask";
  recipe.train.sequence_length = 4;
  write_file(recipe.data.tokens, std::string(50, 'a'));
  std::string mask(50, '\0');
  mask[5] = '\1';  // the first token of a record is no label
  write_file(recipe.data.loss_mask, mask);
  const auto refusal = [&] {
    return message<InputError>([&] { check_labels(recipe, Mixture(recipe.data, 4, 256, 1)); });
  };
  EXPECT_EQ(refusal(), "data.loss_mask: no label of " + recipe.data.tokens.string() +
                           " counts, so nothing can be trained with it: data.loss_mask, data.ignore_id and "
                           "data.boundary_labels together ignore all of them: change or remove one");
  recipe.locations = {{"", "r.yaml"}, {"data.loss_mask", "r.yaml:9:14: data.loss_mask"}};
  EXPECT_TRUE(refusal().starts_with("r.yaml:9:14: data.loss_mask: ")) << refusal();
  mask[49] = '\1';
  write_file(recipe.data.loss_mask, mask);
  EXPECT_EQ(refusal(), "") << "the last label of the last sample";
  recipe.data.ignore_id = 'a';
  EXPECT_NE(refusal(), "");
}

}  // namespace
}  // namespace meshtrain

#include "runtime/program/yaml/reader.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "runtime/program/yaml/key_lister.h"
#include "tests/runtime/program/yaml/yaml_text.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {

struct ReadItem {
  std::string name = "none";
  int64_t weight = 1;
};

struct ReadOptions {
  int64_t count = 3;
  double rate = 0.5;
  bool flag = false;
  std::string word = "slow";
  std::filesystem::path file;
  std::optional<int64_t> limit;
  std::array<double, 2> pair = {1, 2};
  std::map<std::string, int64_t> sizes = {{"dp", 1}};
  std::vector<ReadItem> items;
  std::optional<ReadItem> extra;
};

template <class Archive>
void fields(Archive& archive, ReadItem& item) {
  archive.field("name", item.name, {.required = true});
  archive.field("weight", item.weight);
}

template <class Archive>
void fields(Archive& archive, ReadOptions& options) {
  archive.field("count", options.count, {.required = true, .least = 1, .most = 9});
  archive.field("rate", options.rate, {.above = 0, .below = 1});
  archive.field("flag", options.flag);
  archive.field("word", options.word, {.choices = {"slow", "fast_path"}});
  archive.field("file", options.file);
  archive.field("limit", options.limit, {.minus_one = "auto"});
  archive.field("pair", options.pair);
  archive.field("sizes", options.sizes, {.least = 1, .choices = {"dp", "tp"}, .minus_one = "auto"});
  archive.list("items", options.items, ReadItem{.weight = 7});
  archive.section("extra", options.extra);
}

namespace {

class ReaderTest : public ::testing::Test {
 protected:
  static ReadOptions read(const std::string& text, const std::string& owner = "") {
    ReadOptions options;
    KeyLister lister;
    fields(lister, options);
    const KnownKeys keys(lister.take());
    const YamlValue root = yaml(text);
    Reader reader(root, keys, Reader::Files::LeaveAlone);
    reader.settle(owner);
    fields(reader, options);
    reader.refuse_missing();
    return options;
  }
  static std::string read_refusal(const std::string& text, const std::string& owner = "") {
    return message<InputError>([&] { read(text, owner); });
  }
};

TEST_F(ReaderTest, AbsentAndNullKeysLeaveAValueAsItWas) {
  const ReadOptions options = read("count: 4\nrate: null\nextra: ~\n");
  EXPECT_EQ(options.count, 4);
  EXPECT_EQ(options.rate, 0.5);
  EXPECT_EQ(options.word, "slow");
  EXPECT_FALSE(options.extra || options.limit);
}

TEST_F(ReaderTest, ReadsEachKindOfValue) {
  const ReadOptions options = read(
      "{count: +5, rate: 1e-3, flag: True, word: fast_path, file: x/../a.bin, limit: auto, pair: [0.1, 2], "
      "sizes: {tp: 2, dp: null}, items: [{name: a}, {name: b, weight: 2}], extra: {name: c}}");
  EXPECT_EQ(options.count, 5);
  EXPECT_EQ(options.rate, 1e-3);
  EXPECT_TRUE(options.flag);
  EXPECT_EQ(options.word, "fast_path");
  EXPECT_EQ(options.file, "/recipes/a.bin") << "relative to the folder of the file that names it";
  EXPECT_EQ(options.limit, -1);
  EXPECT_EQ(options.pair, (std::array<double, 2>{0.1, 2}));
  EXPECT_EQ(options.sizes, (std::map<std::string, int64_t>{{"tp", 2}})) << "a map replaces the default map";
  ASSERT_EQ(options.items.size(), 2u);
  EXPECT_EQ(options.items[0].weight, 7) << "the default item's weight";
  EXPECT_EQ(options.items[1].weight, 2);
  ASSERT_TRUE(options.extra);
  EXPECT_EQ(options.extra->weight, 1);
}

TEST_F(ReaderTest, AFolderIsTheSameWithASlashAfterIt) {
  EXPECT_EQ(read("{count: 1, file: /data/x/}").file, "/data/x");
}

TEST_F(ReaderTest, BoundsBelongToTheirSide) {
  EXPECT_EQ(read("{count: 9}").count, 9);
  EXPECT_EQ(read_refusal("{count: 10}"), "r.yaml:1:9: count: 10 is impossible: it must be at most 9");
  EXPECT_EQ(read_refusal("{count: 0}"), "r.yaml:1:9: count: 0 is impossible: it must be at least 1");
  EXPECT_EQ(read_refusal("{count: 1, rate: 0}"), "r.yaml:1:18: rate: 0 is impossible: it must be above 0");
  EXPECT_EQ(read_refusal("{count: 1, rate: 1}"), "r.yaml:1:18: rate: 1 is impossible: it must be below 1");
  EXPECT_EQ(read_refusal("{count: -99999999999999999999}"),
            "r.yaml:1:9: count: -99999999999999999999 is impossible: it must be at least 1");
}

TEST_F(ReaderTest, AWordThatBeginsAChoiceIsAnsweredWithIt) {
  EXPECT_EQ(read_refusal("{count: 1, word: fast}"),
            "r.yaml:1:18: word: \"fast\" is not one of slow, fast_path; did you mean \"fast_path\"?");
}

TEST_F(ReaderTest, RequiredKeysAreMissedTogetherAndBeforeWhatFollowsFromThem) {
  EXPECT_EQ(read_refusal("{rate: 0.1}"), "r.yaml: count: must be given");
  EXPECT_EQ(read_refusal("{items: [{weight: 1}]}"),
            "2 keys are missing:\n  r.yaml: count: must be given\n  r.yaml:1:10: items[0].name: must be given");
  EXPECT_EQ(read_refusal("{rate: 7}"), "r.yaml: count: must be given");
}

TEST_F(ReaderTest, ASettledValueMayBeRepeatedAndNotChanged) {
  EXPECT_EQ(read("{count: 3, pair: [1, 2.0]}", "the folder").count, 3) << "and a required key may be left out";
  EXPECT_EQ(read("{}", "the folder").count, 3);
  EXPECT_EQ(read_refusal("{count: 4}", "the folder"), "r.yaml:1:9: count: 4 differs from the 3 of the folder");
  EXPECT_EQ(read_refusal("{extra: {name: a}}", "the folder"),
            "r.yaml:1:9: extra: a map differs from the none of the folder");
}

TEST_F(ReaderTest, AnErrorOfAnItemHasTheItemsLocation) {
  const YamlValue root = yaml("items: [{name: a}, {weight: 2}]");
  const KnownKeys keys({{"items", "a list of words", {}, ""}});
  const Reader reader(root, keys, Reader::Files::Open);
  const auto failed = [&](size_t item, const std::string& key) {
    return message<InputError>([&] { reader.fail_item("items", item, key, "is wrong"); });
  };
  EXPECT_EQ(failed(1, "weight"), "r.yaml:1:29: items[1].weight: is wrong");
  EXPECT_EQ(failed(1, "name"), "r.yaml:1:20: items[1].name: is wrong")
      << "the item's location, because its key is absent";
  EXPECT_EQ(failed(0, ""), "r.yaml:1:9: items: is wrong");
}

}  // namespace
}  // namespace meshtrain::testing

#include "mesh/agree.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::world;

TEST(Agree, PassesWhenEveryRankDoes) {
  int calls = 0;
  agree(world(), [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(Agree, OneRanksInputErrorBecomesEveryonesWithItsMessage) {
  const int culprit = world().size() - 1;
  try {
    agree(world(), [&] {
      if (world().rank() == culprit) throw InputError("no such file");
    });
    FAIL() << "nothing was thrown";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "no such file");
  }
}

TEST(Agree, TheLowestFailingRankSpeaks) {
  if (world().size() == 1) return;
  try {
    agree(world(), [&] {
      if (world().rank() == 1) throw std::runtime_error("disk full");
      if (world().rank() > 1) throw InputError("later");
    });
    FAIL() << "nothing was thrown";
  } catch (const AgreedError& error) {
    EXPECT_NE(std::string(error.what()).find("disk full"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << "says where";
  }
}

TEST(Agree, OnlyARanksOwnInputErrorWaitsWithALimit) {
  EXPECT_TRUE(is_agreed(InputError("no such file")));
  EXPECT_TRUE(is_agreed(AgreedError("disk full")));
  EXPECT_FALSE(is_agreed(std::runtime_error("disk full")));
  EXPECT_EQ(agreement_limit(InputError("no such file")), std::chrono::seconds(10));
  EXPECT_EQ(agreement_limit(InputError("no such file"), std::chrono::seconds(1)), std::chrono::seconds(1));
  EXPECT_EQ(agreement_limit(AgreedInputError("no such file")), std::nullopt);
  EXPECT_EQ(agreement_limit(AgreedError("disk full")), std::nullopt);
}

TEST(Agree, TextOfRankZeroReachesAll) {
  EXPECT_EQ(broadcast_text(world(), world().rank() == 0 ? "mesh: {dp: 2}\n" : ""), "mesh: {dp: 2}\n");
  EXPECT_EQ(broadcast_text(world(), ""), "");
}

TEST(Agree, TextsOfAllReachRankZero) {
  for (const int longest : {0, 1, 100'000, 9'000'000}) {
    const auto text = [&](int rank) { return std::string(static_cast<size_t>(rank % 3 * longest), 'a' + rank % 26); };
    const std::vector<std::string> texts = gather_texts(world(), text(world().rank()));
    ASSERT_EQ(texts.size(), world().rank() == 0 ? static_cast<size_t>(world().size()) : 0u);
    for (size_t rank = 0; rank < texts.size(); ++rank) EXPECT_EQ(texts[rank], text(static_cast<int>(rank)));
  }
}

TEST(Agree, EachRankGetsItsTextOfRankZero) {
  for (const int longest : {0, 1, 100'000, 9'000'000}) {
    const auto text = [&](int rank) { return std::string(static_cast<size_t>(rank % 3 * longest), 'a' + rank % 26); };
    std::vector<std::string> texts;
    for (int rank = 0; world().rank() == 0 && rank < world().size(); ++rank) texts.push_back(text(rank));
    EXPECT_EQ(scatter_texts(world(), texts), text(world().rank()));
  }
}

}  // namespace
}  // namespace meshtrain

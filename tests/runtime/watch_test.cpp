// What ranks of different hosts learn of each other, with both ends in one process.
#include "runtime/watch/watch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <thread>

#include "runtime/watch/caller.h"
#include "runtime/watch/listener.h"
#include "runtime/watch/phase.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

class Connections : public ::testing::Test {
 protected:
  std::unique_ptr<Caller> call(int rank) { return std::make_unique<Caller>(invitation(), rank); }
  Invitation invitation() const { return Invitation::parse(listener_.invitation().text()); }

  /// Works on both ends for some time, or until `done`; what the listener has lost.
  template <class Done>
  std::vector<std::pair<Frame, Loss>> work(Caller* caller, std::chrono::milliseconds time, const Done& done) {
    std::vector<std::pair<Frame, Loss>> lost;
    for (const Clock::time_point start = Clock::now(); Clock::now() - start < time && !done(lost);) {
      listener_.work(sight_self("rank 0"));
      if (caller != nullptr) caller->work(sight_self("rank 7"));
      for (auto& one : listener_.lost()) lost.push_back(one);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return lost;
  }
  std::vector<std::pair<Frame, Loss>> work(Caller* caller, std::chrono::milliseconds time) {
    return work(caller, time, [](const auto&) { return false; });
  }
  std::vector<std::pair<Frame, Loss>> work_until_lost() {
    return work(nullptr, std::chrono::seconds(10), [](const auto& lost) { return !lost.empty(); });
  }

  /// Connects and sends `frame` as anyone could.
  Descriptor send_as_stranger(const Frame& frame) const {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(invitation().port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::send(socket.number(), &frame, sizeof frame, 0), static_cast<ssize_t>(sizeof frame));
    return socket;
  }

  Listener listener_;
};

TEST_F(Connections, ARankThatEndsWithoutAWordIsLostWithWhatItWasDoing) {
  auto caller = call(7);
  {
    const Phase phase("step 3");
    EXPECT_TRUE(work(caller.get(), std::chrono::milliseconds(500)).empty());
  }
  caller.reset();
  const auto lost = work_until_lost();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].first.rank, 7);
  EXPECT_EQ(lost[0].second, Loss::Ended);
  EXPECT_STREQ(lost[0].first.sender.name.data(), "rank 7");
  EXPECT_STREQ(lost[0].first.sender.phase.data(), "step 3");
  EXPECT_TRUE(work(nullptr, std::chrono::milliseconds(100)).empty()) << "it is lost once";
}

TEST_F(Connections, ARankThatSaysThatItEndsIsNotLost) {
  auto caller = call(7);
  work(caller.get(), std::chrono::milliseconds(300));
  caller->leave();
  work(caller.get(), std::chrono::milliseconds(100));
  caller.reset();
  EXPECT_TRUE(work(nullptr, std::chrono::milliseconds(300)).empty());
  EXPECT_TRUE(listener_.is_left());
}

TEST_F(Connections, RankZeroIsLostInTheSameWay) {
  auto listener = std::make_unique<Listener>();
  Caller caller(Invitation::parse(listener->invitation().text()), 7);
  for (int i = 0; i < 60; ++i) {
    listener->work(sight_self("rank 0"));
    caller.work(sight_self("rank 7"));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(caller.lost());
  listener.reset();
  std::optional<std::pair<Frame, Loss>> lost;
  for (int i = 0; i < 1000 && !lost; ++i) {
    caller.work(sight_self("rank 7"));
    lost = caller.lost();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->second, Loss::Ended);
  EXPECT_STREQ(lost->first.sender.name.data(), "rank 0");
  caller.work(sight_self("rank 7"));
  EXPECT_FALSE(caller.is_refused());
}

TEST_F(Connections, AStrangerIsLetGoAndLearnsNothing) {
  Frame frame;  // without the secret
  frame.rank = 7;
  const Descriptor stranger = send_as_stranger(frame);
  EXPECT_TRUE(work(nullptr, std::chrono::milliseconds(200)).empty());
  char byte = 0;
  EXPECT_EQ(::recv(stranger.number(), &byte, 1, MSG_DONTWAIT), 0) << "closed, without an answer";

  frame.secret = invitation().of_others;  // with it the same frame is answered
  const Descriptor rank = send_as_stranger(frame);
  EXPECT_TRUE(work(nullptr, std::chrono::milliseconds(200)).empty());
  Frame answer;
  EXPECT_EQ(::recv(rank.number(), &answer, sizeof answer, MSG_DONTWAIT), static_cast<ssize_t>(sizeof answer));
  EXPECT_EQ(answer.secret, invitation().of_rank_0);
}

TEST_F(Connections, NobodyWhoDoesNotKnowTheSecretPassesForRankZero) {
  Invitation wrong = invitation();
  wrong.of_rank_0[0] ^= 1;
  Caller caller(wrong, 7);
  bool is_refused = false;  // the caller hangs up at once
  work(&caller, std::chrono::seconds(20), [&](const auto&) { return is_refused = caller.is_refused(); });
  EXPECT_TRUE(is_refused);
  EXPECT_FALSE(caller.is_refused()) << "it is told once";
  EXPECT_FALSE(caller.lost());
}

TEST(Phases, TheInnermostCounts) {
  EXPECT_EQ(Phase::current(), "the set-up");
  int step = 1;
  const Phase outer([&] { return "step " + std::to_string(step); });
  {
    const Phase inner("the export");
    EXPECT_EQ(Phase::current(), "the export");
  }
  step = 2;
  EXPECT_EQ(Phase::current(), "step 2");
}

}  // namespace
}  // namespace meshtrain

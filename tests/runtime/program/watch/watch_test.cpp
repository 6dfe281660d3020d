// The information that ranks of different hosts get about each other, with both ends in one process.
#include "runtime/program/watch/watch.h"

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <thread>

#include "runtime/program/watch/board.h"
#include "runtime/program/watch/caller.h"
#include "runtime/program/watch/listener.h"
#include "runtime/program/watch/phase.h"
#include "tests/support/load.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

class Connections : public ::testing::Test {
 protected:
  std::unique_ptr<Caller> call(int rank) { return std::make_unique<Caller>(invitation(), rank); }
  Invitation invitation() const { return Invitation::parse(listener_.invitation().text()); }

  /// Works on both ends for some time, or until `done`. Returns the ranks that the listener has lost.
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

  /// Connects and sends `bytes`, as any process could.
  Descriptor send_as_stranger(const std::string& bytes) const {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(invitation().port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::send(socket.number(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
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

// The frames about a host's other ranks, sent one after the other, are more than a new socket takes.
TEST(Connection, FramesThatTheSystemTakesInPartsArriveComplete) {
  const Descriptor listening(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listening.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listening.number(), 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(listening.number(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  Descriptor calling(::socket(AF_INET, SOCK_STREAM, 0));
  const int little = 4096;
  ASSERT_EQ(::setsockopt(calling.number(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little), 0);
  ASSERT_EQ(::setsockopt(listening.number(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little), 0);
  ASSERT_EQ(::connect(calling.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  Connection sender(std::move(calling), Secret{1}, Secret{2});
  Connection receiver(Descriptor(::accept(listening.number(), nullptr, nullptr)), Secret{2}, Secret{1});
  sender.greet();
  receiver.greet();
  testing::wait_until([&] { return !sender.receive() && !receiver.receive() && sender.send(Frame{}); });

  constexpr int kFrames = 50;
  int num_sent = 0, num_received = 0, num_refused = 0;
  testing::wait_until([&] {
    Frame frame;
    frame.kind = Frame::kAbout;
    frame.rank = num_sent;
    if (num_sent < kFrames) sender.send(frame) ? ++num_sent : ++num_refused;
    if (num_sent == kFrames || num_refused % 3 == 1) {
      while (receiver.receive()) {
        if (receiver.received().kind != Frame::kAbout) continue;
        EXPECT_EQ(receiver.received().rank, num_received++);
      }
    }
    sender.receive();
    return num_received == kFrames || receiver.is_closed();
  });
  EXPECT_EQ(num_received, kFrames);

  while (sender.send(Frame{})) continue;  // until there is no room
  Frame farewell;
  farewell.kind = Frame::kLeaves;
  sender.leave(farewell);
  testing::wait_until([&] {
    sender.receive();
    receiver.receive();
    return receiver.is_closed();
  });
  EXPECT_TRUE(receiver.is_closed());
  EXPECT_EQ(receiver.last().kind, Frame::kLeaves);
  EXPECT_EQ(receiver.loss(), Loss::None);
  EXPECT_GT(num_refused, 0) << "the system took every frame at once";
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
  const Descriptor stranger = send_as_stranger(std::string(1000, 'x'));  // a nonce, and a frame that is not sealed
  EXPECT_TRUE(work(nullptr, std::chrono::milliseconds(200)).empty());
  EXPECT_FALSE(listener_.answers(0x7878787878787878));
  std::string learnt(1000, '\0');
  const ssize_t size = ::recv(stranger.number(), learnt.data(), learnt.size(), MSG_DONTWAIT);
  EXPECT_LE(size, 16) << "a nonce at most";
}

/// Accepts the first connection of a rank, as another program on rank 0's port may, and keeps the bytes it receives.
TEST_F(Connections, WhoeverAnswersACallSeesNoSecret) {
  const Descriptor other(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(other.number(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(other.number(), 1), 0);
  ASSERT_EQ(::getsockname(other.number(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  Invitation to_other = invitation();
  to_other.addresses = {"127.0.0.1"};
  to_other.port = ntohs(address.sin_port);
  Caller caller(to_other, 7);
  std::string seen;
  Descriptor call;
  for (int i = 0; i < 60; ++i) {
    caller.work(sight_self("rank 7"));
    if (!call.is_open()) {
      call = Descriptor(::accept4(other.number(), nullptr, nullptr, SOCK_NONBLOCK));
      const std::string nonce(16, 'n');
      if (call.is_open()) {
        ASSERT_EQ(::send(call.number(), nonce.data(), nonce.size(), 0), 16);
      }
    }
    char bytes[4096];
    const ssize_t here = call.is_open() ? ::recv(call.number(), bytes, sizeof bytes, 0) : 0;
    if (here > 0) seen.append(bytes, static_cast<size_t>(here));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GT(seen.size(), 16 + sizeof(Frame)) << "its nonce and a frame";
  for (const Secret& secret : {to_other.of_rank_0, to_other.of_others}) {
    EXPECT_EQ(seen.find(std::string(secret.begin(), secret.end())), std::string::npos);
  }
  EXPECT_FALSE(caller.answers());

  // Sent again to rank 0 the bytes are worthless: rank 0 has another nonce.
  const Descriptor again = send_as_stranger(seen);
  EXPECT_TRUE(work(nullptr, std::chrono::milliseconds(200)).empty());
  EXPECT_FALSE(listener_.answers(7));
}

TEST_F(Connections, TheEndOfTheJobReachesRankZeroAndTheOthers) {
  auto caller = call(7);
  work(caller.get(), std::chrono::milliseconds(300));
  ASSERT_TRUE(listener_.answers(7));
  EXPECT_FALSE(listener_.job_ends());
  caller->send_end();
  work(caller.get(), std::chrono::milliseconds(100));
  EXPECT_TRUE(listener_.job_ends());
  EXPECT_FALSE(caller->job_ends());
  listener_.send_end();
  work(caller.get(), std::chrono::milliseconds(100));
  EXPECT_TRUE(caller->job_ends());
}

TEST_F(Connections, NobodyWhoDoesNotKnowTheSecretPassesForRankZero) {
  Invitation wrong = invitation();
  wrong.of_rank_0[0] ^= 1;
  Caller caller(wrong, 7);
  bool is_refused = false;  // the caller closes the connection at once
  work(&caller, std::chrono::seconds(20), [&](const auto&) { return is_refused = caller.is_refused(); });
  EXPECT_TRUE(is_refused);
  EXPECT_FALSE(caller.is_refused()) << "it is told once";
  EXPECT_FALSE(caller.lost());
}

// Axes, their sums, shards, replicas and second queues, and links of a pipeline: a rank has more groups than axes.
TEST(Sights, HaveFortyGroupsAndThosePendingFirst) {
  FlightRecorder recorder;
  Activity activity;
  const at::Tensor tensor = at::zeros({2});
  const Collective sum{.kind = Collective::Kind::AllReduce, .output = tensor, .input = {}, .purpose = "test"};
  const auto add_group = [&](int peer) { return recorder.add_group("to " + std::to_string(peer), {0, peer}); };
  for (int peer = 1; peer <= 40; ++peer) recorder.end(recorder.issue(add_group(peer), sum));
  read_flights(recorder, activity);
  EXPECT_EQ(activity.num_groups, 40);
  const int32_t last = add_group(41);
  recorder.issue(last, sum);
  read_flights(recorder, activity);
  EXPECT_EQ(activity.num_groups, 40);
  EXPECT_EQ(activity.groups[0].name.text(), "to 41") << "its collective has not ended";
}

TEST(Phases, TheInnermostCounts) {
  EXPECT_EQ(Phase::current().text, "the set-up");
  EXPECT_EQ(Phase::current().kind, PhaseKind::SetUp);
  int step = 1;
  const Phase outer([&] { return PhaseState{"step " + std::to_string(step), PhaseKind::Step, step}; });
  {
    const Phase inner({"the export", PhaseKind::Export});
    EXPECT_EQ(Phase::current().kind, PhaseKind::Export);
  }
  step = 2;
  EXPECT_EQ(Phase::current().text, "step 2");
  EXPECT_EQ(Phase::current().step, 2);
}

TEST(Phases, TheOneThatAnExceptionHasLeftIsKept) {
  const auto fail = [](int step) {
    const Phase outer({"step " + std::to_string(step), PhaseKind::Step, step});
    const Phase inner({"the reading", PhaseKind::Reading, step});
    throw std::runtime_error("no such file");
  };
  EXPECT_THROW(fail(3), std::runtime_error);
  EXPECT_EQ(Phase::failed().kind, PhaseKind::Reading);
  EXPECT_EQ(Phase::failed().step, 3);
  EXPECT_EQ(Phase::current().kind, PhaseKind::SetUp);
  { const Phase later("another"); }
  EXPECT_EQ(Phase::failed().kind, PhaseKind::SetUp) << "the work has continued";
}

TEST(Phases, KindsHaveNames) {
  for (const PhaseKind kind : {PhaseKind::SetUp, PhaseKind::Resume, PhaseKind::Step, PhaseKind::Reading,
                               PhaseKind::Saving, PhaseKind::Export, PhaseKind::Other}) {
    EXPECT_EQ(phase_kind_named(name(kind)), kind);
  }
  EXPECT_EQ(phase_kind_named("of a later version"), PhaseKind::Other);
}

TEST(Processes, TheSignalThatEndedOneIsKnownUntilItIsCollected) {
  const pid_t process = fork();
  if (process == 0) {
    raise(SIGKILL);
    _exit(0);
  }
  ASSERT_GT(process, 0);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(is_gone(process));
  EXPECT_EQ(signal_of_end(process), SIGKILL);
  ASSERT_EQ(waitpid(process, nullptr, 0), process);
  EXPECT_EQ(signal_of_end(process), 0);
  EXPECT_EQ(signal_of_end(getpid()), 0);
}

}  // namespace
}  // namespace meshtrain

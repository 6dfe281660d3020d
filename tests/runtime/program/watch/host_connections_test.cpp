// The information that ranks of different hosts get about each other, with both ends in one process.
#include "runtime/program/watch/host_connections.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <memory>
#include <thread>

#include "runtime/program/watch/phase.h"
#include "tests/support/load.h"

namespace meshtrain {
namespace {

/// Returns the loopback address of `family` with the port of `other`, whose family may differ.
sockaddr_storage loopback(sa_family_t family, const sockaddr_storage& other = {}) {
  sockaddr_storage address{};
  address.ss_family = family;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);  // both families store the port in the same bytes
  v4.sin_port = reinterpret_cast<const sockaddr_in&>(other).sin_port;
  if (family == AF_INET) v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (family == AF_INET6) reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
  return address;
}

void set_small_buffer(const Descriptor& socket) {
  const int little = 4096;
  EXPECT_EQ(::setsockopt(socket.number(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little), 0);
}

/// Returns a socket that listens on a port of this host. Sets `address` to that port.
Descriptor listen_at(sockaddr_storage& address) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  set_small_buffer(socket);
  address = loopback(AF_INET);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(socket.number(), 1), 0);
  EXPECT_EQ(::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return socket;
}

/// Passes on to `to` the bytes that have arrived, at most 1,000, and the end. Returns their number.
size_t relay(const Descriptor& from, const Descriptor& to) {
  char bytes[1000];
  const ssize_t here = ::recv(from.number(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (here == 0) ::shutdown(to.number(), SHUT_WR);
  if (here <= 0) return 0;
  EXPECT_EQ(::send(to.number(), bytes, static_cast<size_t>(here), MSG_NOSIGNAL), here);
  return static_cast<size_t>(here);
}

bool has_unsent(const HostConnections& connections) {
  std::vector<pollfd> files;
  connections.wait_for(files);
  return (files.back().events & POLLOUT) != 0;
}

class Connections : public ::testing::Test {
 protected:
  using Lost = std::vector<std::pair<int, Loss>>;

  Connections() { set_rank_name(""); }  // that of other tests in this process

  /// Returns rank 7, which calls only this address.
  std::unique_ptr<HostConnections> call(const sockaddr_storage& address) const {
    Invitation invitation = rank_0_->invitation();
    invitation.num_addresses = 1;
    invitation.addresses[0] = address;
    return std::make_unique<HostConnections>(invitation, 7);
  }
  std::unique_ptr<HostConnections> call() const { return call(address(AF_INET)); }
  sockaddr_storage address(sa_family_t family) const { return loopback(family, rank_0_->invitation().addresses[0]); }

  /// Works on both ends once. Returns the ranks that rank 0 has lost.
  Lost work(HostConnections* caller) {
    rank_0_->work(sight_self("rank 0"));
    if (caller != nullptr) caller->work(sight_self("rank 7"));
    return rank_0_->lost();
  }
  /// Works on both ends for some time. Returns the ranks that rank 0 has lost.
  Lost work(HostConnections* caller, std::chrono::milliseconds time) {
    Lost lost;
    for (const auto start = HostConnections::Clock::now(); HostConnections::Clock::now() - start < time;) {
      for (const auto& one : work(caller)) lost.push_back(one);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return lost;
  }
  void connect(HostConnections& caller) {
    testing::wait_until([&] {
      EXPECT_TRUE(work(&caller).empty());
      return rank_0_->answers(7) && caller.answers(0);
    });
    ASSERT_TRUE(caller.answers(0));
  }

  /// Connects and sends `bytes`, as any process could.
  Descriptor send_as_stranger(const std::string& bytes) const {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
    set_small_buffer(socket);
    const sockaddr_storage there = address(AF_INET);
    EXPECT_EQ(::connect(socket.number(), reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
    EXPECT_EQ(::send(socket.number(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return socket;
  }

  std::unique_ptr<HostConnections> rank_0_ = std::make_unique<HostConnections>();
};

TEST_F(Connections, ARankThatEndsWithoutAWordIsLostWithWhatItWasDoing) {
  auto caller = call();
  {
    const Phase phase("step 3");
    connect(*caller);
  }
  caller.reset();
  Lost lost;
  testing::wait_until([&] { return !(lost = work(nullptr)).empty(); });
  EXPECT_EQ(lost, (Lost{{7, Loss::Ended}}));
  const Sighting& last = rank_0_->seen().at(7).sighting;
  EXPECT_STREQ(last.name.data(), "rank 7");
  EXPECT_STREQ(last.phase.data(), "step 3");
  EXPECT_TRUE(work(nullptr, std::chrono::milliseconds(100)).empty()) << "it is lost once";
}

TEST_F(Connections, RankZeroHearsFromARankAndThroughItFromOthersOfItsHost) {
  for (const sa_family_t family : {AF_INET, AF_INET6}) {
    const auto caller = call(address(family));
    std::vector<std::pair<int, Sighting>> others;
    for (const int rank : {8, 9}) others.emplace_back(rank, sight_self("rank " + std::to_string(rank)));
    testing::wait_until([&] {
      caller->work(sight_self("rank 7"), others);
      work(nullptr);
      return rank_0_->seen().contains(9) || (family == AF_INET6 && caller->is_refused());
    });
    if (!rank_0_->seen().contains(9)) GTEST_SKIP() << "this host has no IPv6";
    for (const int rank : {7, 8, 9}) {
      EXPECT_EQ(rank_0_->seen().at(rank).speaker, 7);
      EXPECT_EQ(rank_0_->seen().at(rank).sighting.name.data(), "rank " + std::to_string(rank));
      EXPECT_EQ(rank_0_->answers(rank), rank == 7);
    }
    EXPECT_STREQ(caller->seen().at(0).sighting.name.data(), "rank 0");
    rank_0_ = std::make_unique<HostConnections>();
  }
}

// A relay between both ends passes on few bytes at a time, then none until the system accepts no more.
TEST_F(Connections, FramesThatTheSystemTakesInPartsArriveComplete) {
  sockaddr_storage between;
  const Descriptor listening = listen_at(between);
  const auto caller = call(between);
  caller->work(sight_self("rank 7"));
  Descriptor near;
  testing::wait_until([&] { return (near = Descriptor(::accept(listening.number(), nullptr, nullptr))).is_open(); });
  const Descriptor far = send_as_stranger("");
  size_t num_relayed = 0;
  const auto work_on = [&] {
    for (int i = 0; i < 100; ++i) {
      caller->work(sight_self("rank 7"));
      num_relayed += relay(near, far) + relay(far, near);
      rank_0_->work(sight_self("rank 0"));
    }
  };
  testing::wait_until([&] { return work_on(), caller->answers(0); });
  EXPECT_TRUE(caller->answers(0));
  EXPECT_GT(num_relayed, 10 * 1000u) << "frames arrived in parts";

  while (!has_unsent(*rank_0_)) rank_0_->send_end();
  rank_0_->leave();
  EXPECT_FALSE(caller->job_ends());
  EXPECT_FALSE(rank_0_->is_left());
  testing::wait_until([&] { return work_on(), rank_0_->is_left(); });
  EXPECT_TRUE(rank_0_->is_left());
  EXPECT_TRUE(caller->job_ends());
  EXPECT_FALSE(caller->answers(0));
  EXPECT_TRUE(caller->lost().empty()) << "every frame was complete, up to the farewell";
}

TEST_F(Connections, ARankThatSaysThatItEndsIsNotLost) {
  auto caller = call();
  connect(*caller);
  EXPECT_FALSE(rank_0_->is_left());
  caller->leave();
  testing::wait_until([&] {
    EXPECT_TRUE(work(caller.get()).empty());
    return caller->is_left();
  });
  EXPECT_TRUE(caller->is_left());
  caller.reset();
  EXPECT_TRUE(work(nullptr, std::chrono::milliseconds(300)).empty());
  EXPECT_TRUE(rank_0_->is_left());
}

TEST_F(Connections, RankZeroIsLostInTheSameWayAndCalledAgain) {
  const auto caller = call();
  connect(*caller);
  EXPECT_TRUE(caller->lost().empty());
  rank_0_.reset();
  Lost lost;
  testing::wait_until([&] {
    caller->work(sight_self("rank 7"));
    return !(lost = caller->lost()).empty();
  });
  EXPECT_EQ(lost, (Lost{{0, Loss::Ended}}));
  EXPECT_STREQ(caller->seen().at(0).sighting.name.data(), "rank 0");
  for (int i = 0; i < 10; ++i) caller->work(sight_self("rank 7"));
  EXPECT_FALSE(caller->is_refused());
  EXPECT_FALSE(caller->answers(0));
}

TEST_F(Connections, AConnectionThatIsCutIsMadeAgain) {
  sockaddr_storage between;
  const Descriptor listening = listen_at(between);
  const auto caller = call(between);
  for (int round = 0; round < 2; ++round) {
    Descriptor near, far;
    testing::wait_until([&] {
      caller->work(sight_self("rank 7"));
      if (near.is_open())
        relay(near, far), relay(far, near);
      else if ((near = Descriptor(::accept(listening.number(), nullptr, nullptr))).is_open())
        far = send_as_stranger("");
      return work(nullptr), caller->answers(0);
    });
    ASSERT_TRUE(caller->answers(0));
    near.reset();
    Lost lost;
    testing::wait_until([&] {
      caller->work(sight_self("rank 7"));
      return !(lost = caller->lost()).empty();
    });
    EXPECT_EQ(lost, (Lost{{0, Loss::Ended}}));
  }
}

TEST_F(Connections, AStrangerLearnsNothingAndIsDisconnected) {
  const Descriptor stranger = send_as_stranger(std::string(1000, 'x'));  // a nonce, and a frame that is not sealed
  EXPECT_TRUE(work(nullptr, std::chrono::milliseconds(200)).empty());
  rank_0_->send_end();
  rank_0_->leave();
  EXPECT_TRUE(rank_0_->is_left()) << "rank 0 does not wait for a client that does not know the secret";
  EXPECT_TRUE(rank_0_->seen().empty());
  std::string learnt(1000, '\0');
  EXPECT_EQ(::recv(stranger.number(), learnt.data(), learnt.size(), MSG_DONTWAIT), 16) << "a nonce";
}

/// Accepts the first connection of a rank, as another program on rank 0's port may, and keeps the bytes it receives.
TEST_F(Connections, AnotherProgramThatAnswersACallSeesNoSecret) {
  sockaddr_storage there;
  const Descriptor other = listen_at(there);
  const auto caller = call(there);
  std::string seen;
  Descriptor call;
  for (int i = 0; i < 60; ++i) {
    caller->work(sight_self("rank 7"));
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
  EXPECT_GT(seen.size(), 16 + sizeof(Sighting)) << "its nonce and a frame";
  const Secret& secret = rank_0_->invitation().secret;
  EXPECT_EQ(seen.find(std::string(secret.begin(), secret.end())), std::string::npos);
  EXPECT_FALSE(caller->answers(0));

  // Sent again to rank 0 the bytes are worthless: rank 0 has another nonce.
  const Descriptor again = send_as_stranger(seen);
  EXPECT_TRUE(work(nullptr, std::chrono::milliseconds(200)).empty());
  EXPECT_FALSE(rank_0_->answers(7));
}

// An end that sends back the bytes it receives shows valid seals, since they come from a rank with the secret.
TEST_F(Connections, ARankDoesNotTakeItsOwnFramesForThoseOfRankZero) {
  sockaddr_storage there;
  const Descriptor mirror = listen_at(there);
  const auto caller = call(there);
  Descriptor call;
  bool is_cut = false;
  testing::wait_until([&] {
    caller->work(sight_self("rank 7"));
    if (!call.is_open()) call = Descriptor(::accept4(mirror.number(), nullptr, nullptr, SOCK_NONBLOCK));
    char bytes[1000];
    const ssize_t here = call.is_open() ? ::recv(call.number(), bytes, sizeof bytes, 0) : -1;
    if (here > 0) ::send(call.number(), bytes, static_cast<size_t>(here), MSG_NOSIGNAL);
    is_cut = here == 0 || (here < 0 && errno == ECONNRESET);
    return is_cut || !caller->seen().empty();
  });
  EXPECT_TRUE(is_cut);
  EXPECT_TRUE(caller->seen().empty());
}

TEST_F(Connections, TheEndOfTheJobReachesRankZeroAndTheOthers) {
  const auto caller = call();
  connect(*caller);
  EXPECT_FALSE(rank_0_->job_ends());
  caller->send_end();
  testing::wait_until([&] { return work(caller.get()), rank_0_->job_ends(); });
  EXPECT_TRUE(rank_0_->job_ends());
  EXPECT_FALSE(caller->job_ends());
  rank_0_->send_end();
  testing::wait_until([&] { return work(caller.get()), caller->job_ends(); });
  EXPECT_TRUE(caller->job_ends());
}

TEST_F(Connections, NobodyWhoDoesNotKnowTheSecretPassesForRankZero) {
  Invitation wrong = rank_0_->invitation();
  wrong.secret[0] ^= 1;
  EXPECT_FALSE(wrong.text().empty());
  HostConnections caller(wrong, 7);
  bool is_refused = false;  // the caller closes the connection at once
  testing::wait_until([&] {
    work(&caller);
    return is_refused = caller.is_refused();
  });
  EXPECT_TRUE(is_refused);
  for (int i = 0; i < 10; ++i) work(&caller);
  EXPECT_FALSE(caller.is_refused()) << "it is told once";
  EXPECT_TRUE(caller.lost().empty());
}

TEST_F(Connections, RankZeroWithoutANetworkIsNotCalled) {
  HostConnections caller(Invitation{}, 7);
  caller.work(sight_self("rank 7"));
  EXPECT_TRUE(caller.is_refused());
  EXPECT_EQ(caller.invitation().text(), "");
}

}  // namespace
}  // namespace meshtrain

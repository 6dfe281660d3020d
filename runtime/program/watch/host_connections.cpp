#include "runtime/program/watch/host_connections.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace meshtrain {
namespace {

using Nonce = std::array<unsigned char, 16>;

constexpr size_t kRounds = 3;                     // number of calls to each address
constexpr std::chrono::seconds kPatience{3};      // time for an address to answer
constexpr std::chrono::seconds kHeartbeat{1};     // between two states of this rank
constexpr std::chrono::seconds kRedialPause{1};   // between two rounds of calls after rank 0 was lost
constexpr std::chrono::seconds kIntroduction{5};  // time for a client to prove that it knows the secret

bool is_link_local(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 16) == 0xa9fe;  // 169.254.0.0/16
}

/// Returns the port of an IPv4 or IPv6 address.
in_port_t& port_of(sockaddr_storage& address) {
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  return reinterpret_cast<sockaddr_in&>(address).sin_port;
}

/// Adds the addresses of this host's networks; if it has none, its loopback addresses.
void add_own_addresses(Invitation& invitation, in_port_t port) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return;
  for (const unsigned loopback : {0U, unsigned{IFF_LOOPBACK}}) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || (one->ifa_flags & (IFF_UP | IFF_LOOPBACK)) != (IFF_UP | loopback)) continue;
      const int family = one->ifa_addr->sa_family;
      if ((family != AF_INET && family != AF_INET6) || is_link_local(one->ifa_addr)) continue;
      if (invitation.num_addresses == invitation.addresses.size()) break;
      sockaddr_storage& address = invitation.addresses[invitation.num_addresses++];
      std::memcpy(&address, one->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      port_of(address) = port;
    }
    if (invitation.num_addresses > 0) break;
  }
  freeifaddrs(all);
}

/// Listens on all IPv4 addresses, and on all IPv6 addresses if the host has IPv6.
Descriptor listen_anywhere(in_port_t& port) {
  for (const sa_family_t family : {AF_INET6, AF_INET}) {
    Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int off = 0;
    if (family == AF_INET6) setsockopt(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_storage any{};  // address 0, port 0: any
    any.ss_family = family;
    auto* const address = reinterpret_cast<sockaddr*>(&any);
    socklen_t size = sizeof any;
    if (bind(socket.number(), address, size) != 0 || listen(socket.number(), 1024) != 0) continue;
    if (getsockname(socket.number(), address, &size) != 0) continue;
    port = port_of(any);
    return socket;
  }
  return Descriptor();
}

}  // namespace

std::string Invitation::text() const {
  std::string text;
  for (size_t i = 0; i < num_addresses; ++i) {
    char name[NI_MAXHOST] = "";
    const auto* const address = reinterpret_cast<const sockaddr*>(&addresses[i]);
    getnameinfo(address, sizeof addresses[i], name, sizeof name, nullptr, 0, NI_NUMERICHOST);
    text += (i == 0 ? "" : ", ") + std::string(name);
  }
  return text;
}

/// A message in either direction: the state of a rank.
struct HostConnections::Frame {
  enum Kind : int64_t {
    kHere,
    kAbout,    ///< the state of another rank on the sender's host
    kJobEnds,  ///< the cause has been reported: do not report ranks that are lost from now on
    kLeaves,
  };

  Kind kind = kHere;
  int rank = 0;
  Sighting sighting;
  uint64_t seal = 0;  ///< make_seal(); while that is computed, the number of the frame

  uint64_t make_seal(const Secret& secret, const Nonce& of_sender, const Nonce& of_receiver) const {
    std::string bytes(of_sender.begin(), of_sender.end());
    bytes.append(of_receiver.begin(), of_receiver.end());
    bytes.append(reinterpret_cast<const char*>(this), sizeof *this);
    return siphash(secret, std::move(bytes));
  }
};

/// The other end of a connection.
struct HostConnections::Peer {
  explicit Peer(Descriptor connected) : socket(std::move(connected)) {
    if (getentropy(nonce.data(), nonce.size()) != 0) socket.reset();
    unsent.assign(nonce.begin(), nonce.end());
    const int limit = static_cast<int>(silence_limit().count());
    const int idle = std::max(limit / 3, 1), interval = std::max(limit / 6, 1);
    const int options[][3] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
                              {IPPROTO_TCP, TCP_KEEPIDLE, idle},
                              {IPPROTO_TCP, TCP_KEEPINTVL, interval},
                              {IPPROTO_TCP, TCP_KEEPCNT, std::max((limit - idle) / interval, 1)},
                              {IPPROTO_TCP, TCP_USER_TIMEOUT, limit * 1000},
                              {IPPROTO_TCP, TCP_NODELAY, 1}};
    for (const auto& [level, name, value] : options) setsockopt(socket.number(), level, name, &value, sizeof value);
  }

  bool is_open() const { return socket.is_open(); }
  bool is_known() const { return rank >= 0; }
  /// Returns true when the connection is closed or a firewall has refused it, which recv() and send() do not report.
  bool has_failed() const {
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0;
  }

  void lose(Loss how) {
    socket.reset();
    if (is_known()) loss = how;
  }

  /// Reads the part of `into` that has arrived. Returns true when it is complete.
  bool read(void* into, size_t bytes) {
    while (is_open()) {
      const ssize_t here = ::recv(socket.number(), static_cast<char*>(into) + num_read, bytes - num_read, 0);
      if (here < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (here <= 0) {
        lose(here == 0 || errno == ECONNRESET || errno == EPIPE ? Loss::Ended : Loss::Silent);
      } else if ((num_read += static_cast<size_t>(here)) == bytes) {
        num_read = 0;
        return true;
      }
    }
    return false;
  }

  /// Sends as many of the unsent bytes as the system accepts; it accepts none before the connection is made.
  void flush() {
    while (!unsent.empty()) {
      const ssize_t sent = ::send(socket.number(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      unsent.erase(0, static_cast<size_t>(sent));
    }
  }

  Descriptor socket;
  Clock::time_point since = Clock::now();
  Nonce nonce{}, their_nonce{};
  std::string unsent;
  Frame incoming;
  size_t num_read = 0;                      // bytes received of the current nonce or frame
  uint64_t num_sent = 0, num_received = 0;  // numbers of frames
  bool has_nonce = false;                   // their_nonce is complete
  int rank = -1;                            // the other end's, once it has proved that it knows the secret
  Loss loss = Loss::None;
  bool may_speak = true;       // rank 0 has answered the last message
  Clock::time_point spoke;     // time when this rank last sent its own state
  size_t num_told = SIZE_MAX;  // number of other ranks whose state was sent since then
};

HostConnections::HostConnections()
    : rank_(0), most_clients_(static_cast<size_t>(std::clamp(sysconf(_SC_OPEN_MAX), 64L, 65536L) / 4)) {
  in_port_t port = 0;
  listening_ = listen_anywhere(port);
  if (getentropy(invitation_.secret.data(), sizeof(Secret)) != 0) listening_.reset();
  if (listening_.is_open()) add_own_addresses(invitation_, port);
}

HostConnections::HostConnections(const Invitation& invitation, int rank)
    : rank_(rank), most_clients_(0), invitation_(invitation) {}

HostConnections::~HostConnections() = default;

void HostConnections::wait_for(std::vector<pollfd>& files) const {
  if (peers_.size() < most_clients_) files.push_back({listening_.number(), POLLIN, 0});
  for (const Peer& peer : peers_) {
    files.push_back({peer.socket.number(), static_cast<short>(peer.unsent.empty() ? POLLIN : POLLIN | POLLOUT), 0});
  }
}

void HostConnections::work(const Sighting& self, const std::vector<std::pair<int, Sighting>>& others) {
  self_ = self;
  while (peers_.size() < most_clients_) {
    Descriptor socket(::accept4(listening_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) break;
    peers_.emplace_back(std::move(socket));
  }
  for (Peer& peer : peers_) {
    peer.flush();
    receive(peer);
  }
  if (rank_ != 0) return speak(others);
  std::erase_if(peers_, [](const Peer& peer) {
    if (!peer.is_open()) return peer.loss == Loss::None;
    return !peer.is_known() && Clock::now() - peer.since > kIntroduction;
  });
}

void HostConnections::receive(Peer& peer) {
  if (!peer.has_nonce) peer.has_nonce = peer.read(&peer.their_nonce, sizeof(Nonce));
  while (peer.has_nonce && peer.read(&peer.incoming, sizeof(Frame))) {
    Frame& frame = peer.incoming;
    const uint64_t seal = std::exchange(frame.seal, 2 * peer.num_received++ + (rank_ == 0 ? 0 : 1));
    if (seal != frame.make_seal(invitation_.secret, peer.their_nonce, peer.nonce)) return peer.lose(Loss::Ended);
    frame.sighting.host.back() = frame.sighting.name.back() = frame.sighting.phase.back() = 0;
    if (frame.kind != Frame::kAbout) peer.rank = frame.rank;
    job_ends_ = job_ends_ || frame.kind == Frame::kJobEnds;
    seen_[frame.rank] = {frame.sighting, Clock::now(), peer.rank};
    peer.may_speak = true;
    if (frame.kind == Frame::kLeaves) peer.socket.reset();
    if (rank_ == 0 && frame.kind <= Frame::kAbout) send(peer, {Frame::kHere, rank_, self_});
  }
}

/// Sends rank 0 the next state, of this rank or of another one on its host, or calls rank 0.
void HostConnections::speak(const std::vector<std::pair<int, Sighting>>& others) {
  if (leaves_) return;
  if (peers_.empty()) return call();
  Peer& peer = peers_.front();
  const Clock::time_point now = Clock::now();
  if (!peer.is_known() && (peer.has_failed() || now - peer.since > kPatience)) {
    send(peer, {Frame::kLeaves, rank_, self_});  // rank 0 may have accepted this connection too late
    return call();
  }
  if (!peer.may_speak) return;
  if (peer.num_told < others.size()) {
    const auto& [rank, sighting] = others[peer.num_told];
    if (!send(peer, {Frame::kAbout, rank, sighting})) return;
    ++peer.num_told;
  } else {
    if (now - peer.spoke < kHeartbeat || !send(peer, {Frame::kHere, rank_, self_})) return;
    peer.num_told = 0;
    peer.spoke = now;
  }
  peer.may_speak = false;
}

/// Calls the next address of rank 0.
void HostConnections::call() {
  peers_.clear();
  const size_t num_addresses = invitation_.num_addresses, most_calls = kRounds * num_addresses;
  const bool was_lost = !seen_.empty();
  if (!was_lost && num_calls_ >= most_calls) {
    is_refused_ = is_refused_ || num_calls_++ == most_calls;
    return;
  }
  if (was_lost && num_calls_ % num_addresses == 0 && Clock::now() - called_ < kRedialPause) return;
  const sockaddr_storage& address = invitation_.addresses[num_calls_++ % num_addresses];
  called_ = Clock::now();
  Descriptor socket(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address);  // in the background
  peers_.emplace_back(std::move(socket));
}

/// Sends `frame`, and any part that the system does not accept now later. Returns false when nothing can be sent now,
/// or when the other end has not introduced itself.
bool HostConnections::send(Peer& peer, Frame frame) {
  const bool is_introduced = rank_ == 0 ? peer.is_known() : peer.has_nonce;
  if (!is_introduced || !peer.is_open() || leaves_) return false;
  peer.flush();
  if (frame.kind <= Frame::kAbout && !peer.unsent.empty()) return false;
  frame.seal = 2 * peer.num_sent++ + (rank_ == 0 ? 1 : 0);
  frame.seal = frame.make_seal(invitation_.secret, peer.nonce, peer.their_nonce);
  peer.unsent.append(reinterpret_cast<const char*>(&frame), sizeof frame);
  peer.flush();
  return true;
}

bool HostConnections::answers(int rank) const {
  return std::ranges::any_of(peers_, [&](const Peer& peer) { return peer.is_open() && peer.rank == rank; });
}

std::vector<std::pair<int, Loss>> HostConnections::lost() {
  std::vector<std::pair<int, Loss>> lost;
  for (const Peer& peer : peers_) {
    if (peer.loss != Loss::None) lost.emplace_back(peer.rank, peer.loss);
  }
  std::erase_if(peers_, [](const Peer& peer) { return peer.loss != Loss::None; });
  if (!lost.empty()) num_calls_ = 0;
  return lost;
}

void HostConnections::send_end() {
  for (Peer& peer : peers_) send(peer, {Frame::kJobEnds, rank_, self_});
}

void HostConnections::leave() {
  for (Peer& peer : peers_) send(peer, {Frame::kLeaves, rank_, self_});
  leaves_ = true;
}

bool HostConnections::is_left() const {
  return std::ranges::none_of(peers_, [](const Peer& peer) { return peer.is_open() && peer.num_sent > 0; });
}

std::chrono::seconds silence_limit() {
  const char* const text = std::getenv("MESHTRAIN_SILENCE_LIMIT");
  const int64_t seconds = text != nullptr ? std::atoll(text) : 0;
  return std::chrono::seconds(std::clamp<int64_t>(seconds > 0 ? seconds : 30, 2, 24 * 3600));
}

}  // namespace meshtrain

#include "runtime/program/watch/listener.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostAddresses = 16;
constexpr std::chrono::seconds kIntroduction{5};  // for a client to prove that it knows the secret

bool is_link_local(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 16) == 0xa9fe;  // 169.254.0.0/16
}

/// Returns the addresses of this host's networks; without any, those that only the host itself reaches.
std::vector<std::string> own_addresses() {
  std::vector<std::string> outside, inside;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const int family = one->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || is_link_local(one->ifa_addr)) continue;
    char text[NI_MAXHOST];
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(one->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) continue;
    ((one->ifa_flags & IFF_LOOPBACK) != 0 ? inside : outside).emplace_back(text);
  }
  freeifaddrs(all);
  std::vector<std::string>& addresses = outside.empty() ? inside : outside;
  addresses.resize(std::min(addresses.size(), kMostAddresses));
  return addresses;
}

/// Listens on all addresses, of both families if the host has IPv6.
Descriptor listen_anywhere(int& port) {
  for (const int family : {AF_INET6, AF_INET}) {
    Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.is_open()) continue;
    const int off = 0;
    if (family == AF_INET6) setsockopt(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 any6{};
    sockaddr_in any{};
    any6.sin6_family = AF_INET6;
    any.sin_family = AF_INET;
    auto* const address = family == AF_INET6 ? reinterpret_cast<sockaddr*>(&any6) : reinterpret_cast<sockaddr*>(&any);
    socklen_t size = family == AF_INET6 ? sizeof any6 : sizeof any;
    if (bind(socket.number(), address, size) != 0 || listen(socket.number(), 1024) != 0) continue;
    if (getsockname(socket.number(), address, &size) != 0) continue;
    port = ntohs(family == AF_INET6 ? any6.sin6_port : any.sin_port);
    return socket;
  }
  return Descriptor();
}

size_t a_quarter_of_the_files() {
  rlimit limit{};
  constexpr rlim_t kLeast = 64, kMost = 65536;
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::clamp(limit.rlim_cur, kLeast, kMost) / 4 : kLeast / 4;
}

}  // namespace

Listener::Listener() : most_guests_(a_quarter_of_the_files()), socket_(listen_anywhere(invitation_.port)) {
  const bool has_secrets =
      getrandom(invitation_.of_rank_0.data(), sizeof(Secret), 0) == static_cast<ssize_t>(sizeof(Secret)) &&
      getrandom(invitation_.of_others.data(), sizeof(Secret), 0) == static_cast<ssize_t>(sizeof(Secret));
  if (!has_secrets) socket_.reset();
  if (socket_.is_open()) invitation_.addresses = own_addresses();
}

void Listener::wait_for(std::vector<pollfd>& files) const {
  if (has_room()) files.push_back({socket_.number(), POLLIN, 0});
  for (const Guest& guest : guests_) files.push_back({guest.connection.number(), POLLIN, 0});
}

void Listener::work(const Sighting& self) {
  self_ = self;
  const Clock::time_point now = Clock::now();
  while (has_room()) {
    Descriptor socket(::accept4(socket_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) break;
    guests_.push_back({Connection(std::move(socket), invitation_.of_rank_0, invitation_.of_others), now});
  }
  for (Guest& guest : guests_) {
    while (guest.connection.receive()) {
      const Frame& received = guest.connection.received();
      if (received.kind == Frame::kHere || received.kind == Frame::kAbout) {
        if (received.kind == Frame::kHere) guest.rank = received.rank;
        seen_[received.rank] = {received.sender, now, guest.rank};
        guest.connection.send(frame(Frame::kHere));
      }
      job_ends_ = job_ends_ || guest.connection.last().kind == Frame::kJobEnds;
    }
  }
  std::erase_if(guests_, [&](const Guest& guest) {
    const bool is_stranger = !guest.connection.is_known();
    if (is_stranger && now - guest.since > kIntroduction) return true;
    return guest.connection.is_closed() && (is_stranger || guest.connection.loss() == Loss::None);
  });
}

std::vector<std::pair<Frame, Loss>> Listener::lost() {
  std::vector<std::pair<Frame, Loss>> lost;
  for (const Guest& guest : guests_) {
    if (guest.connection.loss() != Loss::None) lost.emplace_back(guest.connection.last(), guest.connection.loss());
  }
  std::erase_if(guests_, [](const Guest& guest) { return guest.connection.loss() != Loss::None; });
  return lost;
}

bool Listener::answers(int64_t rank) const {
  return std::ranges::any_of(guests_, [&](const Guest& guest) {
    const Connection& connection = guest.connection;
    return connection.is_known() && !connection.is_closed() && connection.last().rank == rank;
  });
}

void Listener::send_end() {
  for (Guest& guest : guests_) guest.connection.send(frame(Frame::kJobEnds));
}

void Listener::leave() {
  for (Guest& guest : guests_) guest.connection.leave(frame(Frame::kLeaves));
}

bool Listener::is_left() const {
  return std::ranges::all_of(
      guests_, [](const Guest& guest) { return guest.connection.is_closed() || !guest.connection.is_known(); });
}

Frame Listener::frame(Frame::Kind kind) const {
  return {kind, 0, self_};
}

}  // namespace meshtrain

#include "runtime/watch/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>

namespace meshtrain {
namespace {

std::string hexadecimal(const Secret& secret) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : secret) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

Secret parse_secret(const std::string& text) {
  Secret secret{};
  for (size_t i = 0; i < secret.size(); ++i) {
    secret[i] = static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return secret;
}

/// In a time that does not depend on where they differ.
bool is_same(const Secret& a, const Secret& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

void set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

}  // namespace

std::string Invitation::text() const {
  std::string text = std::to_string(port) + " " + hexadecimal(of_rank_0) + " " + hexadecimal(of_others);
  for (const std::string& address : addresses) text += " " + address;
  return text;
}

Invitation Invitation::parse(const std::string& text) {
  Invitation invitation;
  std::istringstream words(text);
  std::string of_rank_0, of_others;
  words >> invitation.port >> of_rank_0 >> of_others;
  invitation.of_rank_0 = parse_secret(of_rank_0);
  invitation.of_others = parse_secret(of_others);
  for (std::string address; words >> address;) invitation.addresses.push_back(address);
  return invitation;
}

Connection::Connection(Descriptor socket, const Secret& theirs) : socket_(std::move(socket)), theirs_(theirs) {
  const int limit = static_cast<int>(silence_limit().count());
  const int idle = std::max(limit / 3, 1), interval = std::max(limit / 6, 1);
  set(number(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set(number(), IPPROTO_TCP, TCP_KEEPIDLE, idle);
  set(number(), IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set(number(), IPPROTO_TCP, TCP_KEEPCNT, std::max((limit - idle) / interval, 1));
  set(number(), IPPROTO_TCP, TCP_USER_TIMEOUT, limit * 1000);
  set(number(), IPPROTO_TCP, TCP_NODELAY, 1);
}

bool Connection::receive() {
  while (socket_.is_open()) {
    char* const into = reinterpret_cast<char*>(&incoming_) + received_;
    const ssize_t bytes = ::recv(number(), into, sizeof incoming_ - received_, MSG_DONTWAIT);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (bytes <= 0) {
      const bool ended = bytes == 0 || errno == ECONNRESET || errno == EPIPE;
      if (!left_) loss_ = ended ? Loss::Ended : Loss::Silent;
      close();
      return false;
    }
    received_ += static_cast<size_t>(bytes);
    if (received_ < sizeof incoming_) continue;
    received_ = 0;
    if (!is_same(incoming_.secret, theirs_)) {
      if (known_) loss_ = Loss::Ended;
      close();
      return false;
    }
    last_ = incoming_;
    last_.sender.host.back() = last_.sender.name.back() = last_.sender.phase.back() = 0;
    known_ = true;
    left_ = last_.kind == Frame::kLeaves;
    return true;
  }
  return false;
}

bool Connection::send(const Frame& frame) {
  return socket_.is_open() &&
         ::send(number(), &frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof frame);
}

void Connection::leave(const Frame& farewell) {
  if (!send(farewell)) return;
  ::shutdown(number(), SHUT_WR);
}

std::chrono::seconds silence_limit() {
  const char* const text = std::getenv("MESHTRAIN_SILENCE_LIMIT");
  const int64_t seconds = text != nullptr ? std::atoll(text) : 0;
  return std::chrono::seconds(std::clamp<int64_t>(seconds > 0 ? seconds : 30, 2, 24 * 3600));
}

}  // namespace meshtrain

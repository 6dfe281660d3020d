#include "runtime/program/watch/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <utility>

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

Connection::Connection(Descriptor socket, const Secret& ours, const Secret& theirs)
    : socket_(std::move(socket)), ours_(ours), theirs_(theirs) {
  if (getrandom(nonce_.data(), nonce_.size(), 0) != static_cast<ssize_t>(nonce_.size())) close();
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
  send_rest();
  if (!is_greeted_) {
    if (!receive(their_nonce_.data(), their_nonce_.size())) return false;
    is_greeted_ = true;
    greet();
  }
  if (!receive(&incoming_, sizeof incoming_)) return false;
  if (incoming_.seal != seal(theirs_, their_nonce_, nonce_, num_received_++, incoming_.frame)) {
    if (known_) loss_ = Loss::Ended;
    close();
    return false;
  }
  Sighting& sender = incoming_.frame.sender;
  sender.host.back() = sender.name.back() = sender.phase.back() = 0;
  known_ = true;
  if (incoming_.frame.kind == Frame::kAbout) return true;
  last_ = incoming_.frame;
  left_ = last_.kind == Frame::kLeaves;
  return true;
}

bool Connection::receive(void* into, size_t bytes) {
  while (socket_.is_open()) {
    const ssize_t here = ::recv(number(), static_cast<char*>(into) + received_, bytes - received_, MSG_DONTWAIT);
    if (here < 0 && errno == EINTR) continue;
    if (here < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (here <= 0) {
      const bool ended = here == 0 || errno == ECONNRESET || errno == EPIPE;
      if (!left_) loss_ = ended ? Loss::Ended : Loss::Silent;
      close();
      return false;
    }
    received_ += static_cast<size_t>(here);
    if (received_ < bytes) continue;
    received_ = 0;
    return true;
  }
  return false;
}

void Connection::greet() {
  if (has_greeted_ || !socket_.is_open()) return;
  has_greeted_ = ::send(number(), nonce_.data(), nonce_.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
                 static_cast<ssize_t>(nonce_.size());
}

bool Connection::send(const Frame& frame) {
  if (!may_send() || !send_rest()) return false;
  add(frame);
  send_rest();
  return true;
}

bool Connection::may_send() const {
  return socket_.is_open() && is_greeted_ && has_greeted_;
}

void Connection::add(const Frame& frame) {
  const Sealed sealed{seal(ours_, nonce_, their_nonce_, num_sent_++, frame), frame};
  unsent_.append(reinterpret_cast<const char*>(&sealed), sizeof sealed);
}

bool Connection::send_rest() {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(number(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    unsent_.erase(0, static_cast<size_t>(sent));
  }
  if (std::exchange(leaves_, false)) ::shutdown(number(), SHUT_WR);
  return true;
}

uint64_t Connection::seal(const Secret& secret, const Nonce& of_sender, const Nonce& of_receiver, uint64_t number,
                          const Frame& frame) {
  std::string bytes;
  bytes.append(of_sender.begin(), of_sender.end());
  bytes.append(of_receiver.begin(), of_receiver.end());
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  bytes.append(reinterpret_cast<const char*>(&frame), sizeof frame);
  return siphash(secret, bytes);
}

void Connection::leave(const Frame& farewell) {
  if (!may_send()) return;
  add(farewell);
  leaves_ = true;
  send_rest();
}

std::chrono::seconds silence_limit() {
  const char* const text = std::getenv("MESHTRAIN_SILENCE_LIMIT");
  const int64_t seconds = text != nullptr ? std::atoll(text) : 0;
  return std::chrono::seconds(std::clamp<int64_t>(seconds > 0 ? seconds : 30, 2, 24 * 3600));
}

}  // namespace meshtrain

#include "runtime/program/watch/caller.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace meshtrain {
namespace {

constexpr size_t kRounds = 3;                    // over all addresses
constexpr std::chrono::seconds kPatience{3};     // with an address that does not answer
constexpr std::chrono::seconds kHeartbeat{1};    // from message to message
constexpr std::chrono::seconds kRedialPause{1};  // from round to round, when rank 0 was lost

}  // namespace

Caller::Caller(Invitation invitation, int rank) : invitation_(std::move(invitation)), rank_(rank) {}

void Caller::wait_for(std::vector<pollfd>& files) const {
  if (!connection_) return;
  files.push_back(
      {connection_->number(), static_cast<short>(connection_->has_greeted() ? POLLIN : POLLIN | POLLOUT), 0});
}

void Caller::work(const Sighting& self, const std::vector<std::pair<int, Sighting>>& others) {
  self_ = self;
  const Clock::time_point now = Clock::now();
  if (leaves_) {
    if (connection_) connection_->receive();
    return;
  }
  if (!connection_) return call_next();
  if (!connection_->is_known()) {
    if (has_failed()) return call_next();
    if (is_connected()) connection_->greet();
    const bool answered = connection_->has_greeted() && connection_->receive();
    if (!has_sent_ && connection_->send(frame(Frame::kHere))) {
      has_sent_ = true;
      sent_ = now;
    }
    if (answered) {
      has_answer_ = true;
      answered_ = now;
      is_lost_ = false;
      note_end();
    } else if (connection_->is_closed() || now - called_ > kPatience) {
      connection_->leave(frame(Frame::kLeaves));  // in case it was accepted too late
      return call_next();
    }
    return;
  }
  while (connection_->receive()) {
    has_answer_ = true;
    answered_ = now;
    note_end();
  }
  if (!has_answer_) return;
  if (num_told_ < others.size()) {
    const auto& [rank, sighting] = others[num_told_];
    if (!connection_->send({Frame::kAbout, rank, sighting})) return;
    ++num_told_;
  } else {
    if (now - sent_ < kHeartbeat || !connection_->send(frame(Frame::kHere))) return;
    num_told_ = 0;
    sent_ = now;
  }
  has_answer_ = false;
}

void Caller::call_next() {
  connection_.reset();
  has_sent_ = has_answer_ = false;
  if (is_lost_ && num_calls_ > 0 && num_calls_ % invitation_.addresses.size() == 0) {
    if (Clock::now() - called_ < kRedialPause) return;
  } else if (!is_lost_ && num_calls_ >= kRounds * invitation_.addresses.size()) {
    is_refused_ = true;
    return;
  }
  const std::string& address = invitation_.addresses[num_calls_++ % invitation_.addresses.size()];
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(invitation_.port).c_str(), &wanted, &found) != 0) return;
  Descriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.is_open()) {
    ::connect(socket.number(), found->ai_addr, found->ai_addrlen);  // connects in the background
    connection_.emplace(std::move(socket), invitation_.of_others, invitation_.of_rank_0);
    called_ = Clock::now();
  }
  freeaddrinfo(found);
}

bool Caller::is_connected() const {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  return ::getpeername(connection_->number(), reinterpret_cast<sockaddr*>(&peer), &size) == 0;
}

bool Caller::has_failed() const {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(connection_->number(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0;
}

std::optional<std::pair<Frame, Loss>> Caller::lost() {
  if (!connection_ || !connection_->is_known() || connection_->loss() == Loss::None) return std::nullopt;
  const auto lost = std::pair(connection_->last(), connection_->loss());
  connection_.reset();
  has_sent_ = has_answer_ = false;
  num_calls_ = 0;
  is_lost_ = true;
  return lost;
}

std::optional<std::pair<Frame, Caller::Clock::time_point>> Caller::last_answer() const {
  if (!answers()) return std::nullopt;
  return std::pair(connection_->last(), answered_);
}

bool Caller::is_refused() {
  return is_refused_ && !std::exchange(has_reported_, true);
}

void Caller::send_end() {
  if (connection_ && has_sent_) connection_->send(frame(Frame::kJobEnds));
}

void Caller::note_end() {
  job_ends_ = job_ends_ || connection_->last().kind == Frame::kJobEnds;
}

void Caller::leave() {
  leaves_ = true;
  if (connection_ && has_sent_) connection_->leave(frame(Frame::kLeaves));
}

Frame Caller::frame(Frame::Kind kind) const {
  return {kind, rank_, self_};
}

}  // namespace meshtrain

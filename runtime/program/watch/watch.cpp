#include "runtime/program/watch/watch.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/base/log.h"
#include "mesh/device/aten.h"
#include "runtime/program/watch/flight_files.h"
#include "runtime/program/watch/phase.h"

namespace meshtrain {
namespace {

constexpr std::chrono::milliseconds kPause{50};
/// Looks before a rank is given up: when all ranks are ended together, none needs to report another.
constexpr int kLooks = 3;
/// The wait before a rank of another host is given up, whose neighbours there report its end if they are alive.
constexpr std::chrono::milliseconds kGrace{500};
/// Hosts that have lost rank 0 report it one after the other, as the job ends meanwhile, and only the first ones do.
constexpr std::chrono::milliseconds kTurn{300}, kLastTurn{3000};
constexpr int kMostReporters = 4;
/// How long a rank waits for the end of the job after another rank of its host has reported the cause: a launcher may
/// fail to end it when its other half is unreachable.
constexpr std::chrono::seconds kEndOfJob{3};
constexpr std::chrono::seconds kFarewell{1};
/// The time that a rank that ends the job waits to say farewell.
constexpr std::chrono::milliseconds kExcuse{50};
constexpr std::chrono::milliseconds kJudgement{500};  // from one to the next
constexpr std::chrono::seconds kFrozen{2};            // a process without a beat for so long does not run
constexpr std::chrono::seconds kNoAnswer{5};          // nor does one of another host that does not answer
constexpr std::chrono::milliseconds kFlights{500};    // for ranks to write their flights
constexpr unsigned kAbortSeconds = 10;                // to write to a stderr that nobody reads, and to end the job

std::atomic<bool> flights_asked = false;  // by a signal
std::timed_mutex current_mutex;
Watch* current = nullptr;

/// Blocks SIGQUIT on this thread and those that it starts from now on, or unblocks it: a thread of the watch or of MPI
/// receives it. Kernels of matrix products let the stack pointer point into their own buffers, and a signal frame would
/// overwrite the data below it.
void block_requests(int how) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGQUIT);
  pthread_sigmask(how, &set, nullptr);
}

/// "rank 3", "ranks 2-4, 7".
std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

/// "; the last collective seen of it was all_reduce of [4] Float for vote, number 12 of group world"; empty for none.
std::string seen_collective(const Sighting& seen) {
  const std::string last = last_collective(seen.activity);
  return last.empty() ? "" : "; the last collective seen of it was " + last;
}

}  // namespace

Watch::Watch(const Group& world) : rank_(world.rank()), name_(world.coordinate_text()) {
  if (world.size() == 1) return;
  hosts_ = HostMap::of(world);
  board_ = std::make_unique<Board>(world, hosts_);
  at::Tensor without_board = at::full({1}, board_->is_shared() ? 0 : 1, at::kLong);
  world.all_reduce(without_board).wait();
  if (hosts_.num_hosts() > 1 || without_board.item<int64_t>() > 0) {
    if (rank_ == 0) connections_.emplace();
    Invitation invitation = connections_ ? connections_->invitation() : Invitation{};
    at::Tensor bytes = at::from_blob(&invitation, {sizeof invitation}, at::kByte);
    world.broadcast(bytes, 0).wait();
    const bool calls = hosts_.is_first_of_host(rank_) || !board_->is_shared();
    if (rank_ != 0 && calls) connections_.emplace(invitation, rank_);
  }
  if (board_->is_shared()) {
    board_->own().last.write(sight_self(name_));
    board_->own().process = getpid();
  }
  Phase::when_changed([this] { show(); });
  FlightRecorder::own().show(board_->is_shared() ? &board_->own().newest : nullptr, [this] { show(); });
  std::signal(SIGQUIT, [](int) { flights_asked = true; });
  wake_ = Descriptor(eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread([this] { look(); });
  block_requests(SIG_BLOCK);
  const std::lock_guard lock(current_mutex);
  current = this;
}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  std::signal(SIGQUIT, SIG_DFL);
  block_requests(SIG_UNBLOCK);
  Phase::when_changed(nullptr);
  FlightRecorder::own().show(nullptr, nullptr);
  {
    const std::lock_guard lock(current_mutex);
    current = nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  eventfd_write(wake_.number(), 1);
  thread_.join();
  leave();
  // Closing a connection with unread data in it would discard the farewell.
  const Clock::time_point start = Clock::now();
  while (connections_ && !connections_->is_left() && Clock::now() - start < kFarewell) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    connections_->work(sight_self(name_));
  }
}

void Watch::excuse() {
  const std::unique_lock lock(current_mutex, kExcuse);
  if (!lock.owns_lock() || current == nullptr) return;  // the watch is being made or ends
  current->ends_ = true;                                // this rank does not report the others, which end because of it
  current->board_->may_report();
  if (current->board_->is_shared()) current->board_->own().process = 0;
  const std::unique_lock of_watch(current->mutex_, kExcuse);
  if (!of_watch.owns_lock()) return;  // the watch's thread is blocked by a stderr that nobody reads
  current->send_end();
  current->leave();
}

void Watch::keep_last_flights() {
  const std::unique_lock lock(current_mutex, kExcuse);
  if (!lock.owns_lock() || current == nullptr) return;
  if (!write_flights(sight_self(current->name_))) return;
  if (current->is_end_reported()) current->await_flights();
}

void Watch::leave() {
  if (board_->is_shared()) board_->own().process = 0;
  if (connections_) connections_->leave();
}

void Watch::look() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const Clock::time_point now = Clock::now();
    const Sighting self = sight();
    if (board_->is_shared()) {
      board_->own().last.write(self);
      ++board_->own().beat;
    }
    note_progress(self);
    if (connections_ && rank_ != 0 && now - others_seen_ >= kJudgement) {
      others_ = others_here();
      others_seen_ = now;
    }
    if (connections_) connections_->work(self, others_);
    spread_end();
    keep_flights();
    look_at_next();
    look_at_hosts();
    look_for_stall();
    wait(lock);
  }
}

void Watch::note_progress(const Sighting& self) {
  if (phase_ == self.phase.data()) return;
  const Clock::time_point now = Clock::now();
  if (!phase_.empty()) longest_phase_ = std::max(longest_phase_, now - moved_);
  phase_ = self.phase.data();
  moved_ = now;
}

void Watch::show() {
  const std::lock_guard lock(mutex_);
  if (board_->is_shared()) board_->own().last.write(sight());
}

Sighting Watch::sight() {
  const Clock::time_point now = Clock::now();
  if (now - looked_ > kFrozen) {  // it was stopped, and has seen nothing of the others
    stillness_.note_halt(now - looked_);
    judged_ = now + kFrozen;
  }
  looked_ = now;
  Sighting self = sight_self(name_);
  const std::optional<StallLimits> limits = StallGuard::current();
  stillness_.note(FlightRecorder::own().num_records(), self.phase.data(), limits.has_value(), self.activity);
  self.activity.is_stop_asked = limits && limits->is_stop_asked;
  return self;
}

std::vector<std::pair<int, Sighting>> Watch::others_here() const {
  std::vector<std::pair<int, Sighting>> others;
  if (!hosts_.is_first_of_host(rank_)) return others;
  const std::vector<int>& ranks = hosts_.ranks_of(hosts_.host_of(rank_));
  const std::vector<Board::Slot*> slots = board_->slots();
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t process = slots[i]->process;
    if (static_cast<int>(i) == board_->index() || process == 0) continue;
    others.emplace_back(ranks[i], slots[i]->sight());
    others.back().second.activity.is_stopped = is_stopped(process);
  }
  return others;
}

void Watch::look_for_stall() {
  const Clock::time_point now = Clock::now();
  const std::optional<StallLimits> limits = StallGuard::current();
  if (now - judged_ < kJudgement || !limits || is_end_reported()) return;
  if (!lost_.empty()) return;  // a host that does not answer explains every wait, and look_at() reports it
  judged_ = now;
  if (!judges() && !stalls_.is_told()) return;
  const std::vector<RankSight> ranks = sights();
  const StallWatch::Decision decision = stalls_.look(ranks, *limits);
  for (const std::string& line : decision.lines) log_warning(line);
  if (decision.ended_after) append_stall_ended(static_cast<double>(*decision.ended_after) / 1e3);
  if (!decision.end.empty()) report_and_abort(meshtrain::failure_of(*decision.told, ranks, decision.end));
  if (decision.told) append_stalled(meshtrain::failure_of(*decision.told, ranks, decision.lines.back()));
}

bool Watch::runs(int index, const Board::Slot& slot) {
  const Clock::time_point now = Clock::now();
  beats_.resize(std::max(beats_.size(), static_cast<size_t>(index) + 1), {-1, now});
  Beat& beat = beats_[static_cast<size_t>(index)];
  if (const int64_t count = slot.beat; count != beat.count) beat = {count, now};
  return now - beat.since < kFrozen;
}

bool Watch::judges() {
  const std::vector<Board::Slot*> slots = board_->slots();
  bool is_first = true;
  for (int index = 0; index < static_cast<int>(slots.size()); ++index) {
    const Board::Slot& slot = *slots[static_cast<size_t>(index)];
    const bool is_there = slot.process != 0 && runs(index, slot);
    if (index < board_->index() && is_there) is_first = false;
  }
  if (hosts_.host_of(rank_) == hosts_.host_of(0) && board_->is_shared()) return is_first;
  if (rank_ == 0) return true;  // the host has no shared memory
  return is_first && connections_ && connections_->answers(0) &&
         Clock::now() - connections_->seen().at(0).when > kNoAnswer;
}

std::vector<RankSight> Watch::sights() {
  std::map<int, RankSight> all;
  const auto add = [&](int rank, const Sighting& sighting, bool runs, Clock::duration silent) {
    all[rank] = {rank,
                 sighting.host.data(),
                 sighting.name.data(),
                 {sighting.phase.data(), sighting.phase_kind, sighting.step},
                 runs,
                 sighting.activity,
                 std::chrono::duration_cast<std::chrono::milliseconds>(silent).count()};
  };
  const Clock::time_point now = Clock::now();
  if (connections_ && (rank_ == 0 || connections_->answers(0))) {
    for (const auto& [rank, seen] : connections_->seen()) {
      add(rank, seen.sighting, now - seen.when < kNoAnswer, now - seen.when);
      if (seen.speaker != rank) all[rank].speaker = seen.speaker;
    }
  }
  const std::vector<int>& ranks = hosts_.ranks_of(hosts_.host_of(rank_));
  const std::vector<Board::Slot*> slots = board_->slots();
  for (int index = 0; index < static_cast<int>(slots.size()); ++index) {
    const Board::Slot& slot = *slots[static_cast<size_t>(index)];
    const int64_t process = slot.process;
    if (process == 0) continue;
    const int rank = ranks[static_cast<size_t>(index)];
    const bool is_running = runs(index, slot);
    const bool is_own = index == board_->index();  // whose newest collective another thread writes
    add(rank, is_own ? slot.last.read() : slot.sight(), is_running, now - beats_[static_cast<size_t>(index)].since);
    all[rank].activity.is_stopped = is_stopped(process);
  }
  if (!board_->is_shared()) add(rank_, sight(), true, {});
  std::vector<RankSight> sights;
  for (auto& [rank, sight] : all) sights.push_back(std::move(sight));
  return sights;
}

void Watch::keep_flights() {
  const bool ends = is_end_reported();
  if (!flights_asked.exchange(false) && (!ends || has_kept_flights_)) return;
  has_kept_flights_ = ends;
  write_flights(sight());
  if (board_->is_shared()) board_->own().has_written_flights = ends;
}

// Gives the other ranks of this host a moment to write their flights, before the job ends.
void Watch::await_flights() const {
  const Clock::time_point start = Clock::now();
  const auto is_missing = [this](const Board::Slot* slot) {
    const int64_t process = slot->process;
    return slot != &board_->own() && process != 0 && !slot->has_written_flights && !is_stopped(process);
  };
  while (Clock::now() - start < kFlights) {
    const std::vector<Board::Slot*> slots = board_->slots();
    if (std::none_of(slots.begin(), slots.end(), is_missing)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void Watch::wait(std::unique_lock<std::timed_mutex>& lock) const {
  std::vector<pollfd> files = {{wake_.number(), POLLIN, 0}};
  if (connections_) connections_->wait_for(files);
  lock.unlock();
  poll(files.data(), files.size(), static_cast<int>(kPause.count()));
  lock.lock();
}

// Passes the end of the job on to other hosts. Ranks that end because of another's failure end at different times, and
// none of them is reported.
void Watch::spread_end() {
  if (is_spread_ || !is_end_reported()) return;
  board_->may_report();
  send_end();
}

void Watch::send_end() {
  is_spread_ = true;
  if (connections_) connections_->send_end();
}

bool Watch::is_end_reported() const {
  return board_->is_reported() || (connections_ && connections_->job_ends());
}

// Looks at the next rank of this host, so that every rank is watched by one.
void Watch::look_at_next() {
  if (!board_->is_shared()) return;
  const Board::Slot& next = board_->next();
  const int64_t process = next.process;
  const bool missing = process != 0 && is_gone(process) && next.process == process;
  if (!missing || num_missing_ == 0) end_signal_ = 0;
  num_missing_ = missing ? num_missing_ + 1 : 0;
  if (missing && end_signal_ == 0) end_signal_ = signal_of_end(process);
  if (num_missing_ < kLooks) return;
  const std::vector<Board::Slot*> slots = board_->slots();
  const auto index = static_cast<size_t>(std::find(slots.begin(), slots.end(), &next) - slots.begin());
  const Sighting seen = next.sight();
  RankFailure failure = failure_of(FailureCause::Killed, {hosts_.ranks_of(hosts_.host_of(rank_)).at(index)}, seen);
  failure.signal = end_signal_;
  failure.message = std::string(seen.name.data()) +
                    " ended without a message: it was killed, perhaps for lack of memory; it was in " +
                    seen.phase.data() + seen_collective(seen);
  report_and_abort(failure);
}

void Watch::look_at_hosts() {
  if (!connections_) return;
  for (const auto& [rank, loss] : connections_->lost()) {
    lost_.try_emplace(rank, LostRank{loss, connections_->seen().at(rank).sighting, Clock::now()});
  }
  if (connections_->is_refused()) {
    const std::string tried = connections_->invitation().text();
    log_warning(std::string(name_) + " on " + sight_self(name_).host.data() + " cannot reach rank 0 over TCP (" +
                (tried.empty() ? "rank 0 has no network" : "tried " + tried) +
                "): if this host is lost, nothing will report it");
  }
  for (auto& [rank, lost] : lost_) look_at(rank, lost);
  std::erase_if(lost_, [this](const auto& each) { return connections_->answers(each.first); });
}

void Watch::look_at(int rank, LostRank& lost) {
  const Clock::time_point now = Clock::now();
  if (connections_->answers(rank)) {
    if (!lost.is_reported) return;
    log_warning(std::string(lost.seen.name.data()) + " answers again");
    append_answers(rank);
    return;
  }
  const int turn = std::max(hosts_.host_of(rank_) - 1, 0);
  if (!lost.is_reported && now - lost.since >= kGrace + std::min(kTurn * turn, kLastTurn)) {
    lost.is_reported = true;
    std::fflush(stdout);
    if (turn < kMostReporters && !is_end_reported()) {
      const RankFailure failure = describe(rank, lost);
      log_failure(failure.message);
      append_failed(failure);
    }
  }
  if (now - std::max(lost.since, moved_) < patience(lost.loss)) return;
  board_->may_report();  // the ranks of this host need not report this one as gone
  abort_mpi(1);
}

Watch::Clock::duration Watch::patience(Loss loss) const {
  const Clock::duration limit = silence_limit();
  return std::max(loss == Loss::Silent ? 2 * limit : limit / 3, 3 * longest_phase_);
}

RankFailure Watch::failure_of(FailureCause cause, std::vector<int> ranks, const Sighting& seen) {
  return {.cause = cause,
          .ranks = std::move(ranks),
          .host = seen.host.data(),
          .phase = meshtrain::name(seen.phase_kind),
          .step = seen.step,
          .during = seen.phase.data()};
}

RankFailure Watch::describe(int rank, const LostRank& lost) const {
  std::vector<int> ranks = hosts_.ranks_of(hosts_.host_of(rank));
  const std::string name = lost.seen.name.data(), host = lost.seen.host.data();
  const std::string seen = std::string("in ") + lost.seen.phase.data() + seen_collective(lost.seen);
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(patience(lost.loss)).count();
  const std::string next = "; the job ends unless this rank makes a step within " + std::to_string(seconds) + " s";
  if (lost.loss == Loss::Silent) {
    RankFailure failure = failure_of(FailureCause::Network, ranks, lost.seen);
    failure.message = "host " + host + " (" + describe_ranks(ranks) + ") has not answered for " +
                      std::to_string(silence_limit().count()) + " s: its power or its network has failed; " + name +
                      " was " + seen + next;
    return failure;
  }
  const bool has_others = hosts_.is_first_of_host(rank) && ranks.size() > 1;
  std::erase(ranks, rank);
  RankFailure failure = failure_of(FailureCause::Killed, {rank}, lost.seen);
  if (has_others) failure.ranks.insert(failure.ranks.end(), ranks.begin(), ranks.end());
  failure.message = name + " on host " + host + (has_others ? ", and " + describe_ranks(ranks) + " there," : "") +
                    " ended without a message: it was killed, perhaps for lack of memory; it was " + seen + next;
  return failure;
}

void Watch::report_and_abort(const RankFailure& failure) {
  alarm(kAbortSeconds);
  if (board_->may_report()) {
    send_end();
    std::fflush(stdout);
    log_failure(failure.message);
    append_failed(failure);
    if (write_flights(sight())) await_flights();
  } else {
    std::this_thread::sleep_for(kEndOfJob);
  }
  abort_mpi(1);
}

}  // namespace meshtrain

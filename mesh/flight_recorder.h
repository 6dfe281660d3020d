#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/backend.h"
#include "mesh/base/shared_value.h"

namespace meshtrain {

/// A short text in plain memory, which processes may share and hosts may send; a longer one is cut.
template <size_t Size>
struct ShortText {
  std::array<char, Size> characters{};

  ShortText() = default;
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> ShortText(const Text& text) {
    std::string_view(text).copy(characters.data(), Size - 1);
  }
  std::string text() const { return std::string(characters.data()); }
};

/// A collective of this rank, as it is recorded. Plain memory.
struct Flight {
  using Clock = std::chrono::steady_clock;

  int64_t number = 0;    ///< of the collectives of this rank, from 1 on; 0: none
  int64_t in_group = 0;  ///< of the collectives of its group, from 1 on: the same on all its ranks
  int32_t group = 0;     ///< index in FlightRecorder::groups()
  Collective::Kind kind{};
  Reduce reduce{};
  at::ScalarType dtype{};
  bool on_device = false;          ///< the host does not wait for it
  int32_t from = -1, to = -1;      ///< Collective
  int32_t dims = 0;                ///< of the output, of which the first are in `shape`
  std::array<int64_t, 4> shape{};  ///< of the output
  int64_t bytes = 0;               ///< of output and input
  ShortText<32> purpose;
  ShortText<56> work;                              ///< part of a step: "forward of block 3"; empty: none
  Clock::time_point issued{}, started{}, ended{};  ///< `started`, `ended`: zero as long as it has not
  Clock::duration waited{};                        ///< that the host has waited for it
};

/// Returns "all_gather of [4, 8] Float for tp.linear".
std::string describe(const Flight& flight);
/// Returns true when two ranks' collectives of one group may be one: operation, reduction and dtype are the same, and
/// the shapes are, where the operation demands it.
bool fit(const Flight& one, const Flight& other);

/// The state of a group of ranks, as one of its ranks sees it.
struct GroupFlights {
  uint64_t key = 0;        ///< the same on its ranks, and different for groups of other ranks and for a second queue
  std::string name;        ///< "tp", "pp 0>1"
  std::string family;      ///< GroupTraits: "pp" of the link "pp 0>1"
  bool is_link = false;    ///< its messages go from the first rank to the second
  std::vector<int> ranks;  ///< of the world
  int64_t issued = 0, ended = 0;               ///< collectives
  Flight pending;                              ///< the first that has not ended; number 0: all have
  Flight::Clock::duration total{}, exposed{};  ///< sums over collectives: from start to end; waited for by the host
  int64_t sent_bytes = 0;                      ///< Traffic::sent_bytes, summed over collectives
};

/// The name of a group for messages. Plain memory.
struct GroupLabel {
  ShortText<16> name;
  int32_t sender = -1, receiver = -1;  ///< of a link: ranks of the world
};

GroupLabel label_of(const GroupFlights& group);
/// Returns "group tp", "link pp 0>1 from rank 0 to rank 4".
std::string describe(const GroupLabel& label);

/// The collective that a rank has issued last, as it shows it to other processes at once. Plain memory.
struct NewestFlight {
  uint64_t key = 0;  ///< of its group
  GroupLabel group;
  Flight flight;
};

/// The cost of collectives to this rank so far, by the family of their group.
struct GroupCost {
  Flight::Clock::duration total{}, exposed{};  ///< GroupFlights
  int64_t sent_bytes = 0;
};
using GroupCosts = std::map<std::string, GroupCost, std::less<>>;

/// A part of this rank's work: "forward of block 3".
struct TracedWork {
  ShortText<56> name;
  Flight::Clock::time_point begun{}, ended{};
};

/// Everything that was recorded between two moments.
struct FlightTrace {
  std::vector<Flight> flights;      ///< issued in between, in the order of their numbers
  std::vector<TracedWork> works;    ///< one after the other
  std::vector<TracedWork> actions;  ///< FlightRecorder::begin_action(), one after the other; they enclose works
};

/// The last collectives of this process, always recorded. They show what a stuck rank does, what it did last and what
/// it waits for. Any thread may call anything; a call holds a lock for less than a microsecond.
class FlightRecorder {
 public:
  using Clock = Flight::Clock;
  static constexpr size_t kFlights = 2000;

  /// Returns the recorder of this process.
  static FlightRecorder& own();

  /// Adds a group of world ranks. Returns its index.
  int32_t add_group(const GroupTraits& traits, std::vector<int> ranks);

  /// Names the part of a step's work that later collectives belong to: "forward of block 3". Empty: the action that has
  /// begun, if any.
  void set_work(std::string_view work);
  /// Begins a part that encloses those of set_work() until end_action(): "forward of stage 1". Each name has the
  /// micro-batch before it: "micro-batch 5, forward of block 3".
  void begin_action(int micro_batch, std::string_view action);
  void end_action();
  std::string work() const;
  /// Makes set_work() call `call` with the name of each part, for tools that show what a process does. Call before
  /// training starts.
  void on_work(std::function<void(const char* work)> call) { on_work_ = std::move(call); }
  /// Makes issue() write each collective into `newest`, and set_work() call `call` after it has set the part. Null ends
  /// that. Call while nothing is issued.
  void show(SharedValue<NewestFlight>* newest, std::function<void()> call);

  /// Records that a collective is issued, started, ended. `number`: what issue() returned. `sent_bytes`: Traffic.
  int64_t issue(int32_t group, const Collective& collective, int64_t sent_bytes = 0);
  void start(int64_t number);
  void end(int64_t number);
  /// Records that the host begins and ends to wait for a collective.
  void begin_wait(int64_t number);
  void end_wait(int64_t number);

  /// Begins to keep all flights and parts of the work, including those that leave the ring. take_trace() returns them.
  void begin_trace();
  FlightTrace take_trace();

  /// Returns the last flights, in the order of their numbers.
  std::vector<Flight> flights() const;
  std::vector<GroupFlights> groups() const;
  /// Returns the sums of all groups of a family.
  GroupCosts costs() const;
  /// Returns how long the host has waited for collectives so far.
  Flight::Clock::duration exposed() const;
  /// Returns the collective that the host waits for now, if any.
  std::optional<Flight> awaited() const;
  /// Returns the collective that was issued last, if any.
  std::optional<Flight> last() const;
  /// Returns a number that grows with every record.
  int64_t num_records() const;

 private:
  struct State {
    GroupFlights flights;
    std::deque<int64_t> outstanding;  // numbers, in the order of the group
  };

  Flight* find(int64_t number);
  const Flight* find(int64_t number) const;

  mutable std::mutex mutex_;
  std::vector<Flight> ring_ = std::vector<Flight>(kFlights);
  int64_t last_ = 0;  // number
  int64_t num_records_ = 0;
  ShortText<56> work_;
  ShortText<56> action_;                                                // the enclosing part; empty: none
  std::optional<int> micro_batch_;                                      // of action_
  std::vector<std::pair<int64_t, Flight::Clock::time_point>> awaited_;  // number and begin of waits; the newest last
  std::vector<State> groups_;
  std::map<uint64_t, int> same_ranks_;  // how many groups have these ranks

  ShortText<56> name_of(std::string_view work) const;
  void tell(const ShortText<56>& work) const;

  std::function<void(const char*)> on_work_;
  std::function<void()> after_work_;
  SharedValue<NewestFlight>* newest_ = nullptr;
  bool traces_ = false;
  int64_t traced_from_ = 0;                  // number of the first flight of the trace
  std::vector<Flight> out_of_ring_;          // flights of the trace that have left the ring
  std::vector<TracedWork> works_, actions_;  // of the trace; the last ones may not have ended
};

/// The time since its construction without what the host waited for collectives of this process.
class ComputeTimer {
 public:
  double seconds() const {
    const FlightRecorder::Clock::duration waited = FlightRecorder::own().exposed() - waited_before_;
    return std::chrono::duration<double>(FlightRecorder::Clock::now() - begun_ - waited).count();
  }

 private:
  FlightRecorder::Clock::time_point begun_ = FlightRecorder::Clock::now();
  FlightRecorder::Clock::duration waited_before_ = FlightRecorder::own().exposed();
};

/// Decorates a transport: every collective is recorded in `recorder`, and so are those of groups that are made of it.
/// `ranks`: the world ranks of the group, by group rank. `traits`: the group's.
std::shared_ptr<Backend> record_flights(std::shared_ptr<Backend> inner, FlightRecorder& recorder, GroupTraits traits,
                                        std::vector<int> ranks);

}  // namespace meshtrain

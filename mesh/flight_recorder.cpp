#include "mesh/flight_recorder.h"

#include <algorithm>
#include <utility>

#include "mesh/device/aten.h"
#include "mesh/forwarding.h"
#include "mesh/traffic.h"

namespace meshtrain {
namespace {

using Kind = Collective::Kind;

/// Returns FNV-1a over the ranks and `nth`.
uint64_t key_of(const std::vector<int>& ranks, int nth) {
  uint64_t key = 0xCBF29CE484222325;
  const auto add = [&](int number) { key = (key ^ static_cast<uint64_t>(number + 1)) * 0x100000001B3; };
  for (const int rank : ranks) add(rank);
  add(-2);
  add(nth);
  return key;
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

void end_last(std::vector<TracedWork>& works, Flight::Clock::time_point now) {
  if (!works.empty() && works.back().ended == Flight::Clock::time_point{}) works.back().ended = now;
}

Flight flight_of(const Collective& collective) {
  Flight flight;
  flight.kind = collective.kind;
  flight.reduce = collective.reduce;
  flight.from = collective.from;
  flight.to = collective.to;
  flight.purpose = collective.purpose;
  const at::Tensor& output = collective.output;
  if (!output.defined()) return flight;
  flight.dtype = output.scalar_type();
  flight.on_device = !output.is_cpu();
  flight.dims = static_cast<int32_t>(output.dim());
  const size_t kept = std::min(flight.shape.size(), static_cast<size_t>(output.dim()));
  std::copy_n(output.sizes().begin(), kept, flight.shape.begin());
  flight.bytes = bytes_of(output) + bytes_of(collective.input);
  return flight;
}

/// The work of a recorded collective.
class RecordedWork final : public Work::State {
 public:
  RecordedWork(Work work, FlightRecorder& recorder, int64_t number, bool ends_here)
      : work_(std::move(work)), recorder_(recorder), number_(number), ends_here_(ends_here) {}

  void wait() override {
    recorder_.begin_wait(number_);
    work_.wait();
    recorder_.end_wait(number_);
    if (ends_here_) recorder_.end(number_);
  }

 private:
  Work work_;
  FlightRecorder& recorder_;
  int64_t number_;
  bool ends_here_;  // when the host has waited for it
};

class RecordedBackend final : public ForwardingBackend {
 public:
  RecordedBackend(std::shared_ptr<Backend> inner, FlightRecorder& recorder, GroupTraits traits, std::vector<int> ranks)
      : ForwardingBackend(std::move(inner)),
        recorder_(recorder),
        traits_(std::move(traits)),
        ranks_(std::move(ranks)),
        group_(recorder.add_group(traits_, ranks_)) {}

  Work issue(const Collective& collective) override {
    const int64_t number = recorder_.issue(group_, collective, traffic_of(rank(), size(), collective).sent_bytes);
    Collective marked = collective;
    marked.mark = FlightMark(recorder_, number);
    const bool on_host = !collective.output.defined() || collective.output.is_cpu();
    if (!on_host) recorder_.begin_wait(number);  // a transport of devices may connect its ranks here
    Work work = inner()->issue(marked);
    if (!on_host) recorder_.end_wait(number);
    return Work(std::make_shared<RecordedWork>(std::move(work), recorder_, number, on_host));
  }

 protected:
  std::shared_ptr<Backend> decorate_split(std::shared_ptr<Backend> part, const std::vector<int>& members,
                                          const GroupTraits& traits) override {
    std::vector<int> ranks;
    for (const int member : members) ranks.push_back(ranks_.at(static_cast<size_t>(member)));
    return record_flights(std::move(part), recorder_, traits, std::move(ranks));
  }
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> second_queue) override {
    return record_flights(std::move(second_queue), recorder_, traits_, ranks_);
  }

 private:
  FlightRecorder& recorder_;
  GroupTraits traits_;
  std::vector<int> ranks_;
  int32_t group_;
};

}  // namespace

void FlightMark::started() const {
  if (recorder_ != nullptr) recorder_->start(number_);
}

void FlightMark::ended() const {
  if (recorder_ != nullptr) recorder_->end(number_);
}

std::string describe(const Flight& flight) {
  std::string text = name(flight.kind);
  if (flight.kind != Kind::Barrier) {
    text += " of [";
    const int32_t shown = std::min<int32_t>(flight.dims, static_cast<int32_t>(flight.shape.size()));
    for (int32_t i = 0; i < shown; ++i)
      text += (i == 0 ? "" : ", ") + std::to_string(flight.shape[static_cast<size_t>(i)]);
    if (shown < flight.dims) text += ", ...";
    text += std::string("] ") + c10::toString(flight.dtype);
  }
  return text + " for " + flight.purpose.text();
}

GroupLabel label_of(const GroupFlights& group) {
  GroupLabel label{group.name};
  if (group.is_link) label.sender = group.ranks.at(0), label.receiver = group.ranks.at(1);
  return label;
}

std::string describe(const GroupLabel& label) {
  if (label.sender < 0) return "group " + label.name.text();
  return "link " + label.name.text() + " from rank " + std::to_string(label.sender) + " to rank " +
         std::to_string(label.receiver);
}

bool fit(const Flight& one, const Flight& other) {
  if (one.kind != other.kind) return false;
  if (one.kind == Kind::Barrier) return true;
  if (one.dtype != other.dtype) return false;
  const bool reduces = one.kind == Kind::AllReduce || one.kind == Kind::ReduceScatter;
  if (reduces && one.reduce != other.reduce) return false;
  if (one.kind == Kind::AllToAll || one.kind == Kind::Exchange) return true;  // parts may differ
  return one.dims == other.dims && one.shape == other.shape && one.bytes == other.bytes;
}

FlightRecorder& FlightRecorder::own() {
  static auto* const recorder = new FlightRecorder;  // outlives threads that record
  return *recorder;
}

int32_t FlightRecorder::add_group(const GroupTraits& traits, std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  const int nth = same_ranks_[key_of(ranks, 0)]++;
  State& state = groups_.emplace_back();
  state.flights.key = key_of(ranks, nth);
  state.flights.name = traits.name;
  state.flights.family = traits.family.empty() ? traits.name : traits.family;
  state.flights.is_link = traits.messages_only;
  state.flights.ranks = std::move(ranks);
  return static_cast<int32_t>(groups_.size()) - 1;
}

void FlightRecorder::set_work(std::string_view work) {
  ShortText<56> name;
  {
    const std::lock_guard lock(mutex_);
    name = work_ = work.empty() ? action_ : name_of(work);
    if (traces_) {
      const Clock::time_point now = Clock::now();
      end_last(works_, now);
      if (!work.empty()) works_.push_back({name, now, {}});
    }
  }
  tell(name);
}

void FlightRecorder::begin_action(int micro_batch, std::string_view action) {
  ShortText<56> name;
  {
    const std::lock_guard lock(mutex_);
    micro_batch_ = micro_batch;
    name = work_ = action_ = name_of(action);
    if (traces_) {
      const Clock::time_point now = Clock::now();
      end_last(works_, now);
      end_last(actions_, now);
      actions_.push_back({name, now, {}});
    }
  }
  tell(name);
}

void FlightRecorder::end_action() {
  {
    const std::lock_guard lock(mutex_);
    micro_batch_.reset();
    work_ = action_ = {};
    if (traces_) {
      end_last(works_, Clock::now());
      end_last(actions_, Clock::now());
    }
  }
  tell({});
}

/// Shows the new part to tools and to other processes. Call without the lock.
void FlightRecorder::tell(const ShortText<56>& work) const {
  if (on_work_) on_work_(work.characters.data());
  if (after_work_) after_work_();
}

ShortText<56> FlightRecorder::name_of(std::string_view work) const {
  if (!micro_batch_) return work;
  return "micro-batch " + std::to_string(*micro_batch_) + ", " + std::string(work);
}

std::string FlightRecorder::work() const {
  const std::lock_guard lock(mutex_);
  return work_.text();
}

void FlightRecorder::show(SharedValue<NewestFlight>* newest, std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  newest_ = newest;
  after_work_ = std::move(call);
}

void FlightRecorder::begin_trace() {
  const std::lock_guard lock(mutex_);
  traces_ = true;
  traced_from_ = last_ + 1;
  out_of_ring_.clear();
  works_.clear();
  actions_.clear();
}

FlightTrace FlightRecorder::take_trace() {
  const std::lock_guard lock(mutex_);
  end_last(works_, Clock::now());
  end_last(actions_, Clock::now());
  traces_ = false;
  FlightTrace trace{std::move(out_of_ring_), std::move(works_), std::move(actions_)};
  const int64_t in_ring = last_ - static_cast<int64_t>(kFlights) + 1;
  for (int64_t number = std::max(traced_from_, in_ring); number <= last_; ++number) {
    trace.flights.push_back(*find(number));
  }
  out_of_ring_ = {};
  works_ = {};
  actions_ = {};
  return trace;
}

int64_t FlightRecorder::issue(int32_t group, const Collective& collective, int64_t sent_bytes) {
  Flight flight = flight_of(collective);
  flight.group = group;
  flight.issued = Flight::Clock::now();
  const std::lock_guard lock(mutex_);
  State& state = groups_[static_cast<size_t>(group)];
  flight.number = ++last_;
  flight.work = work_;
  flight.in_group = ++state.flights.issued;
  state.flights.sent_bytes += sent_bytes;
  state.outstanding.push_back(flight.number);
  Flight& slot = ring_[static_cast<size_t>(flight.number) % kFlights];
  if (traces_ && slot.number >= traced_from_) out_of_ring_.push_back(slot);
  slot = flight;
  ++num_records_;
  if (newest_ != nullptr) newest_->write({state.flights.key, label_of(state.flights), flight});
  return flight.number;
}

Flight* FlightRecorder::find(int64_t number) {
  Flight& flight = ring_[static_cast<size_t>(number) % kFlights];
  return flight.number == number ? &flight : nullptr;
}

const Flight* FlightRecorder::find(int64_t number) const {
  const Flight& flight = ring_[static_cast<size_t>(number) % kFlights];
  return flight.number == number ? &flight : nullptr;
}

void FlightRecorder::start(int64_t number) {
  const Flight::Clock::time_point now = Flight::Clock::now();
  const std::lock_guard lock(mutex_);
  if (Flight* const flight = find(number)) flight->started = now;
  ++num_records_;
}

void FlightRecorder::end(int64_t number) {
  const Flight::Clock::time_point now = Flight::Clock::now();
  const std::lock_guard lock(mutex_);
  Flight* const flight = find(number);
  if (flight == nullptr || flight->ended != Flight::Clock::time_point{}) return;
  flight->ended = now;
  if (flight->started == Flight::Clock::time_point{}) flight->started = flight->issued;
  State& state = groups_[static_cast<size_t>(flight->group)];
  state.flights.total += flight->ended - flight->started;
  ++state.flights.ended;
  std::erase(state.outstanding, number);
  ++num_records_;
}

void FlightRecorder::begin_wait(int64_t number) {
  const Flight::Clock::time_point now = Flight::Clock::now();
  const std::lock_guard lock(mutex_);
  awaited_.emplace_back(number, now);
}

void FlightRecorder::end_wait(int64_t number) {
  const Flight::Clock::time_point now = Flight::Clock::now();
  const std::lock_guard lock(mutex_);
  ++num_records_;
  const auto begun =
      std::find_if(awaited_.begin(), awaited_.end(), [&](const auto& each) { return each.first == number; });
  if (begun == awaited_.end()) return;
  const Flight::Clock::duration waited = now - begun->second;
  awaited_.erase(begun);
  Flight* const flight = find(number);
  if (flight == nullptr) return;
  flight->waited += waited;
  groups_[static_cast<size_t>(flight->group)].flights.exposed += waited;
}

std::vector<Flight> FlightRecorder::flights() const {
  const std::lock_guard lock(mutex_);
  std::vector<Flight> all;
  const int64_t first = std::max<int64_t>(1, last_ - static_cast<int64_t>(kFlights) + 1);
  for (int64_t number = first; number <= last_; ++number) all.push_back(*find(number));
  return all;
}

std::vector<GroupFlights> FlightRecorder::groups() const {
  const std::lock_guard lock(mutex_);
  std::vector<GroupFlights> all;
  for (const State& state : groups_) {
    all.push_back(state.flights);
    if (state.outstanding.empty()) continue;
    if (const Flight* const flight = find(state.outstanding.front())) all.back().pending = *flight;
  }
  return all;
}

GroupCosts FlightRecorder::costs() const {
  const std::lock_guard lock(mutex_);
  GroupCosts costs;
  for (const State& state : groups_) {
    GroupCost& cost = costs[state.flights.family];
    cost.total += state.flights.total;
    cost.exposed += state.flights.exposed;
    cost.sent_bytes += state.flights.sent_bytes;
  }
  return costs;
}

Flight::Clock::duration FlightRecorder::exposed() const {
  const std::lock_guard lock(mutex_);
  Flight::Clock::duration exposed{};
  for (const State& state : groups_) exposed += state.flights.exposed;
  return exposed;
}

std::optional<Flight> FlightRecorder::awaited() const {
  const std::lock_guard lock(mutex_);
  if (awaited_.empty()) return std::nullopt;
  const Flight* const flight = find(awaited_.back().first);
  return flight != nullptr ? std::optional(*flight) : std::nullopt;
}

std::optional<Flight> FlightRecorder::last() const {
  const std::lock_guard lock(mutex_);
  return last_ == 0 ? std::nullopt : std::optional(*find(last_));
}

int64_t FlightRecorder::num_records() const {
  const std::lock_guard lock(mutex_);
  return num_records_;
}

std::shared_ptr<Backend> record_flights(std::shared_ptr<Backend> inner, FlightRecorder& recorder, GroupTraits traits,
                                        std::vector<int> ranks) {
  if (inner->size() == 1) return inner;
  return std::make_shared<RecordedBackend>(std::move(inner), recorder, std::move(traits), std::move(ranks));
}

}  // namespace meshtrain

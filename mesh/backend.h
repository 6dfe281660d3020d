#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

enum class Reduce { Sum, Max };

/// The kind of memory that a group allocates.
enum class Placement {
  Private,  ///< ordinary memory of this rank
  Own,      ///< this rank's own, which the group's ranks on the same host read and write in place
  Common,   ///< one copy for all the group's ranks on a host: what one of them writes all see
};

struct GroupMemory {
  at::Tensor tensor;
  Placement placement = Placement::Private;  ///< the kind that was allocated, the same on every rank of the group
};

/// A collective in progress. A value: copies wait for the same operation.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    /// Returns when the caller may use the result; throws when the collective failed. May be called again.
    virtual void wait() = 0;
  };

  /// Completed work.
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  void wait() const {
    if (state_) state_->wait();
  }

 private:
  std::shared_ptr<State> state_;
};

class FlightRecorder;

/// The record of a collective in a FlightRecorder, to which a transport reports. A value; empty: nothing is recorded.
class FlightMark {
 public:
  FlightMark() = default;
  FlightMark(FlightRecorder& recorder, int64_t number) : recorder_(&recorder), number_(number) {}
  /// Reports that the collective moves data, and that it is done. Any thread.
  void started() const;
  void ended() const;

 private:
  FlightRecorder* recorder_ = nullptr;
  int64_t number_ = 0;
};

/// One collective, as a group hands it to its backend. Tensors are contiguous, checked, and share dtype and device.
struct Collective {
  enum class Kind { AllReduce, AllGather, ReduceScatter, AllToAll, Exchange, Broadcast, Barrier, Message };

  Kind kind;
  at::Tensor output;  ///< all-reduce, broadcast and message: the tensor itself, in place
  at::Tensor input;   ///< undefined for these and for a barrier
  Reduce reduce = Reduce::Sum;
  int from = -1;  ///< exchange: group rank received from; broadcast: root; message: sender
  int to = -1;    ///< exchange: group rank sent to; message: receiver
  /// All-to-all of parts that differ: rows that come from each rank and that go to each; empty: equal parts.
  std::vector<int64_t> received = {}, sent = {};
  // The issuer, for messages and counters; the texts live as long as the call of issue().
  std::string_view purpose = "other";
  std::string_view group = "group";      ///< name of the group
  std::string_view coordinate = "rank";  ///< "rank 3 (dp=0 tp=1 cp=1)"
  FlightMark mark = {};
};

/// The share of a device that a group's collectives may take from the computation that runs meanwhile.
enum class Urgency {
  Awaited,     ///< computing waits for them, so they may take all of the device
  Soon,        ///< computing runs beside them and needs their results soon
  Background,  ///< computing runs beside them for long: sums of gradients, gathers of parameters
};

/// The properties of a new group that its backend knows.
struct GroupTraits {
  std::string name;  ///< for messages, and for the logs of the library behind a backend
  Urgency urgency = Urgency::Background;
  bool messages_only = false;  ///< a link's: it needs no memory that ranks of a host share
  std::string family = {};     ///< the name that costs of several groups are summed under; empty: `name`
};

const char* name(Collective::Kind kind);

/// Returns true when rank `rank` of the group only reads the tensor that the collective acts on in place.
bool only_reads(const Collective& collective, int rank);

/// Returns the beginning of messages about a collective: "rank 3 (dp=0 tp=1 cp=1): all_gather on group tp (2 ranks),
/// purpose tp.linear, output [4, 8] Float cpu, ...".
std::string describe(const Collective& collective, int size);

/// The transport behind a Group. `issue` starts a collective and returns at once; collectives of one group run in the
/// order they are issued, those of different groups concurrently. The backend keeps the tensors alive until done.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Work issue(const Collective& collective) = 0;
  /// Returns the backend of a smaller group. `members`: ranks of this group, this one among them, in the new order.
  /// Every rank of this group must call it, each with the list of its own new group and the same traits.
  virtual std::shared_ptr<Backend> split(const std::vector<int>& members, const GroupTraits& traits) = 0;
  /// Group::second_queue(). Null where the backend has one queue for all of a group's collectives.
  virtual std::shared_ptr<Backend> second_queue();
  /// Group::window() and Group::host_ranks(). A backend without windows returns an undefined tensor, and 1.
  virtual at::Tensor window(int64_t numel, const at::TensorOptions& options, Placement placement);
  virtual int host_ranks() const;
  /// Returns a number for the host of each rank, by group rank: ranks of one host have the same. A backend that knows
  /// no hosts puts all ranks on one. No collective.
  virtual std::vector<int> hosts() const;
  /// Group::check(). Does nothing in backends whose Work::wait() waits for the result.
  virtual void check() const {}
};

}  // namespace meshtrain

#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "mesh/backend.h"
#include "mesh/device/copy_watch.h"
#include "pipeline_parallel/schedule.h"

namespace meshtrain {

/// A part of a step.
enum class TimelinePart {
  Gradients,
  Update,
  HostUpdate,  ///< of offloaded shards: their operators compute on the host
};

/// A call of an operator that computes, or several calls of equal work: its work, whatever the machine.
struct OperatorCall {
  enum class Kind {
    Product,      ///< of matrices
    Attention,    ///< flash attention, forward or backward
    Elementwise,  ///< all others: what they read and write takes the time
  };

  Kind kind = Kind::Elementwise;
  TimelinePart part = TimelinePart::Gradients;
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of its largest operand
  double flops = 0;  ///< of products and attention; causal attention has half of the pairs
  double bytes = 0;  ///< read and written
  /// Products: batch, rows, columns, summed elements. Attention: heads of all samples, queries, keys, head dim.
  std::array<int64_t, 4> product = {};
  bool is_backward = false;  ///< of attention
  int signature = -1;        ///< number in Timeline::signatures; -1: not kept
  int64_t times = 1;         ///< so many calls, one after the other; flops and bytes are those of one
};

/// The start of a collective.
struct CollectiveCall {
  Collective::Kind kind = Collective::Kind::AllReduce;
  TimelinePart part = TimelinePart::Gradients;
  std::string group = {};
  int queue = 0;  ///< collectives of one queue run one after the other
  int size = 1;   ///< ranks of the group
  int num_hosts = 1;
  double buffer_bytes = 0, sent_bytes = 0;  ///< Traffic's
  Placement memory = Placement::Private;    ///< of the buffer
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::optional<size_t> after_copy = {};  ///< it starts when this copy ends
};

/// The start of a copy between a GPU and its host.
struct CopyCall {
  CopyDirection direction = CopyDirection::ToDevice;
  double bytes = 0;
  bool disk = false;                 ///< the host's memory is a file
  std::optional<size_t> after = {};  ///< the copy of the same stream before it, counted as in CopyWait
};

/// The moment at which computing waits for a copy.
struct CopyWait {
  size_t copy = 0;  ///< which, counted by their starts, from 0
};

/// The moment at which computing waits for a collective.
struct CollectiveWait {
  size_t collective = 0;  ///< which, counted by their starts, from 0
};

/// The beginning of a rank's computing action in its pipeline, until the next; none: all actions have ended.
struct ActionBegin {
  std::optional<PipelineAction> action = {};
};

/// An operator on inputs of a shape, a memory order and a dtype each.
struct OperatorSignature {
  std::string text;  ///< "aten::mm(Float 4x8, Float 8x2 by 1,8)"
  c10::OperatorName name{"", ""};
  std::vector<c10::IValue> inputs = {};  ///< tensors without memory
};

/// Returns the inputs of an operator with each tensor t replaced by change(t).
std::vector<c10::IValue> with_tensors(c10::ArrayRef<const c10::IValue> inputs,
                                      const std::function<at::Tensor(const at::Tensor&)>& change);

/// The operators, collectives, copies and waits of one rank in a step, in its order.
struct Timeline {
  using Event = std::variant<OperatorCall, CollectiveCall, CollectiveWait, CopyCall, CopyWait, ActionBegin>;
  std::vector<Event> events;
  std::vector<OperatorSignature> signatures;  ///< of its operators, each once; only when they are asked for
  int64_t host_ranks = 1;                     ///< ranks of the host, which update at the same time
};

/// Records the operators that this thread calls on tensors of the Meta device, the collectives of a backend and
/// the copies of CopyStreams, while it exists. Operators that others are made of count in their place; views and
/// allocations do not count. A thread has one at a time.
class TimelineRecorder {
 public:
  /// `signatures`: keeps Timeline::signatures too.
  explicit TimelineRecorder(bool signatures);
  ~TimelineRecorder();
  TimelineRecorder(const TimelineRecorder&) = delete;
  TimelineRecorder& operator=(const TimelineRecorder&) = delete;

  /// Returns `inner` with its collectives recorded, until the recorder ends.
  std::shared_ptr<Backend> watch(std::shared_ptr<Backend> inner);
  void set(TimelinePart part);
  void begin(const ActionBegin& action);
  /// Forgets what was recorded so far.
  void restart();
  /// Returns what was recorded since restart().
  Timeline take();

  struct Record;

 private:
  std::shared_ptr<Record> record_;
  uint64_t callback_;
};

}  // namespace meshtrain

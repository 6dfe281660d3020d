#include "mesh/traffic.h"

namespace meshtrain {
namespace {

int64_t bytes(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

int64_t buffer_bytes(const Collective& collective) {
  switch (collective.kind) {
    case Collective::Kind::ReduceScatter:
    case Collective::Kind::Exchange:
    case Collective::Kind::AllToAll:
      return bytes(collective.input);
    default:
      return bytes(collective.output);
  }
}

int64_t sent_bytes(const Collective& collective, int64_t buffer, int64_t rank, int64_t size) {
  if (size == 1) return 0;
  if (!collective.sent.empty()) {  // parts that differ
    const int64_t rows = collective.input.size(0);
    return rows == 0 ? 0 : buffer / rows * (rows - collective.sent[rank]);
  }
  switch (collective.kind) {
    case Collective::Kind::AllReduce:
      return 2 * buffer * (size - 1) / size;
    case Collective::Kind::AllGather:
    case Collective::Kind::ReduceScatter:
    case Collective::Kind::AllToAll:
      return buffer * (size - 1) / size;
    case Collective::Kind::Message:
      return collective.from == rank ? buffer : 0;
    default:
      return buffer;
  }
}

}  // namespace

Traffic traffic_of(int rank, int size, const Collective& collective) {
  const int64_t buffer = buffer_bytes(collective);
  return {1, buffer, sent_bytes(collective, buffer, rank, size)};
}

void TrafficLedger::record(int rank, int size, const Collective& collective) {
  const Traffic added = traffic_of(rank, size, collective);
  Traffic& entry = entries_[Key{std::string(collective.group), std::string(collective.purpose), collective.kind}];
  entry.calls += added.calls;
  entry.buffer_bytes += added.buffer_bytes;
  entry.sent_bytes += added.sent_bytes;
}

Traffic TrafficLedger::total(const std::string& group, const std::string& purpose) const {
  Traffic sum;
  for (const auto& [key, entry] : entries_) {
    if ((!group.empty() && key.group != group) || (!purpose.empty() && key.purpose != purpose)) continue;
    sum.calls += entry.calls;
    sum.buffer_bytes += entry.buffer_bytes;
    sum.sent_bytes += entry.sent_bytes;
  }
  return sum;
}

}  // namespace meshtrain

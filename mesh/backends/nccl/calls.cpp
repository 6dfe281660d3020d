#include "mesh/backends/nccl/calls.h"

namespace meshtrain {
namespace {

using Kind = Collective::Kind;

/// Returns the calls that send slice i of the input to rank i and receive slice i of the output; this rank's is copied.
std::vector<NcclCall> parts(const Collective& collective, int rank, int size) {
  const int64_t rows = collective.input.size(0), row = rows == 0 ? 0 : collective.input.numel() / rows;
  const auto count = [&](const std::vector<int64_t>& counts, int part) {
    return counts.empty() ? collective.input.numel() / size : counts[static_cast<size_t>(part)] * row;
  };
  std::vector<NcclCall> calls;
  int64_t from = 0, to = 0;
  // The length of a row of an input without rows is unknown; rows of the output are as long.
  const int64_t received_row =
      collective.output.size(0) == 0 ? 0 : collective.output.numel() / collective.output.size(0);
  for (int part = 0; part < size; ++part) {
    const int64_t sent = count(collective.sent, part);
    const int64_t received =
        collective.received.empty() ? sent : collective.received[static_cast<size_t>(part)] * received_row;
    if (part == rank) {
      if (sent > 0) calls.push_back({NcclCall::Kind::Copy, -1, from, to, sent});
    } else {
      if (received > 0) calls.push_back({NcclCall::Kind::Receive, part, 0, to, received});
      if (sent > 0) calls.push_back({NcclCall::Kind::Send, part, from, 0, sent});
    }
    from += sent;
    to += received;
  }
  return calls;
}

}  // namespace

std::vector<NcclCall> nccl_calls(const Collective& collective, int rank, int size) {
  const int64_t numel = collective.output.defined() ? collective.output.numel() : 0;
  switch (collective.kind) {
    case Kind::Barrier:
      return {};
    case Kind::AllToAll:
      return parts(collective, rank, size);
    case Kind::AllReduce:
      return numel == 0 ? std::vector<NcclCall>{} : std::vector<NcclCall>{{NcclCall::Kind::AllReduce, -1, 0, 0, numel}};
    case Kind::Broadcast:
      if (numel == 0) return {};
      return {{NcclCall::Kind::Broadcast, collective.from, 0, 0, numel}};
    case Kind::AllGather:
      if (numel == 0) return {};
      return {{NcclCall::Kind::AllGather, -1, 0, 0, collective.input.numel()}};
    case Kind::ReduceScatter:
      if (numel == 0) return {};
      return {{NcclCall::Kind::ReduceScatter, -1, 0, 0, numel}};
    case Kind::Exchange:
      if (numel == 0) return {};
      if (collective.to == rank) return {{NcclCall::Kind::Copy, -1, 0, 0, numel}};
      return {{NcclCall::Kind::Receive, collective.from, 0, 0, numel},
              {NcclCall::Kind::Send, collective.to, 0, 0, numel}};
    case Kind::Message:
      if (numel == 0) return {};
      if (collective.from == rank) return {{NcclCall::Kind::Send, collective.to, 0, 0, numel}};
      return {{NcclCall::Kind::Receive, collective.from, 0, 0, numel}};
  }
  return {};
}

bool needs_output_apart(const Collective& collective, int rank) {
  if (collective.kind != Kind::ReduceScatter || !collective.output.is_alias_of(collective.input)) return false;
  const int64_t offset = collective.output.storage_offset() - collective.input.storage_offset();
  const bool inside = offset > -collective.output.numel() && offset < collective.input.numel();
  return inside && offset != rank * collective.output.numel();
}

int nccl_max_blocks(const GroupTraits& traits, bool two_queues) {
  if (traits.messages_only) return 2;
  switch (traits.urgency) {
    case Urgency::Awaited:
      return 0;
    case Urgency::Soon:
      return 8;
    case Urgency::Background:
      return two_queues ? 8 : 16;
  }
  return 0;
}

}  // namespace meshtrain

// The messages of a chunk's phases: who sends what to whom.
#include <algorithm>
#include <cstring>

#include "mesh/backends/mpi_transfer.h"

namespace meshtrain {
namespace {

using Kind = Collective::Kind;

// A tag is the operation, the chunk and the phase, each modulo a power of two: 15 bits, which every MPI allows.
// Messages of one tag never overtake each other, so a tag may come again once the chunk that it named is done.
constexpr uint32_t kTagOperations = 128;
constexpr int kTagPhases = 8;

}  // namespace

void MpiTransfer::post(MpiSlot& slot) {
  const Span part = span(slot);
  const int rank = communicator_.rank;
  switch (collective_.kind) {
    case Kind::AllReduce:
      return post_all_reduce(slot);
    case Kind::Broadcast:
      return post_broadcast(slot);
    case Kind::Barrier:
      return post_barrier(slot);
    case Kind::ReduceScatter:
      post_reduction(slot, input(rank * elements_ + part.begin), part.size);
      for (int i = 1; i < communicator_.size; ++i) {
        send(slot, peer(i), input(peer(i) * elements_ + part.begin), part.size);
      }
      return;
    case Kind::AllGather: {
      for (int i = 1; i < communicator_.size; ++i) {
        const int from = peer(communicator_.size - i);
        receive(slot, from, output(from * elements_ + part.begin), part.size);
      }
      for (int i = 1; i < communicator_.size; ++i) send(slot, peer(i), input(part.begin), part.size);
      std::byte* const own = output(rank * elements_ + part.begin);
      if (own != input(part.begin)) std::memcpy(own, input(part.begin), part.size * element_bytes_);
      return;
    }
    case Kind::AllToAll: {
      for (int i = 1; i < communicator_.size; ++i) {
        const int from = peer(communicator_.size - i);
        const Span theirs = span(slot, received_[from]);
        receive(slot, from, output(theirs.begin), theirs.size);
      }
      for (int i = 1; i < communicator_.size; ++i) {
        const Span theirs = span(slot, sent_[peer(i)]);
        send(slot, peer(i), input(theirs.begin), theirs.size);
      }
      const Span to = span(slot, received_[rank]), from = span(slot, sent_[rank]);
      if (from.size > 0) std::memcpy(output(to.begin), input(from.begin), from.size * element_bytes_);
      return;
    }
    case Kind::Exchange:
      receive(slot, collective_.from, output(part.begin), part.size);
      send(slot, collective_.to, input(part.begin), part.size);
      return;
  }
}

void MpiTransfer::post_all_reduce(MpiSlot& slot) {
  const int rank = communicator_.rank;
  if (one_round_) {
    post_reduction(slot, output(0), elements_);
    for (int i = 1; i < communicator_.size; ++i) send(slot, peer(i), output(0), elements_);
    return;
  }
  const Span mine = slice(slot, rank);
  if (slot.phase == 0) {
    post_reduction(slot, output(mine.begin), mine.size);
    for (int i = 1; i < communicator_.size; ++i) {
      const Span theirs = slice(slot, peer(i));
      send(slot, peer(i), output(theirs.begin), theirs.size);
    }
    return;
  }
  for (int i = 1; i < communicator_.size; ++i) {
    const int from = peer(communicator_.size - i);
    const Span theirs = slice(slot, from);
    receive(slot, from, output(theirs.begin), theirs.size);
  }
  for (int i = 1; i < communicator_.size; ++i) send(slot, peer(i), output(mine.begin), mine.size);
}

void MpiTransfer::post_reduction(MpiSlot& slot, const std::byte* own, int64_t own_elements) {
  const int64_t part_bytes = own_elements * element_bytes_;
  const int64_t needed = part_bytes * (communicator_.size - 1);
  if (slot.scratch_bytes < needed) {
    slot.scratch.reset(new std::byte[static_cast<size_t>(needed)]);
    slot.scratch_bytes = needed;
  }
  slot.parts.clear();
  std::byte* next = slot.scratch.get();
  for (int rank = 0; rank < communicator_.size; ++rank) {
    if (rank == communicator_.rank) {
      slot.parts.push_back(own);
      continue;
    }
    slot.parts.push_back(next);
    receive(slot, rank, next, own_elements);
    next += part_bytes;
  }
}

void MpiTransfer::post_broadcast(MpiSlot& slot) {
  const Span part = span(slot);
  const int size = communicator_.size;
  const int relative = (communicator_.rank - collective_.from + size) % size;
  const auto absolute = [&](int r) { return (r + collective_.from) % size; };
  // In the binomial tree a rank's parent is it without its lowest bit; its children add a bit below that.
  int below = 1;
  while (below < size && !(relative & below)) below <<= 1;
  if (slot.phase == 0) {
    if (relative != 0) receive(slot, absolute(relative ^ below), output(part.begin), part.size);
    return;
  }
  for (int bit = below >> 1; bit > 0; bit >>= 1) {
    if (relative + bit < size) send(slot, absolute(relative + bit), output(part.begin), part.size);
  }
}

void MpiTransfer::post_barrier(MpiSlot& slot) {
  // One byte each way: messages of no elements are not sent.
  static std::byte sent{};
  static std::byte received{};
  const int distance = (1 << slot.phase) % communicator_.size;
  receive(slot, peer(communicator_.size - distance), &received, 1);
  send(slot, peer(distance), &sent, 1);
}

void MpiTransfer::send(MpiSlot& slot, int peer, const std::byte* data, int64_t elements) {
  if (elements == 0) return;
  slot.requests.push_back(MPI_REQUEST_NULL);
  slot.expected.push_back(-1);
  check_mpi(MPI_Isend(data, static_cast<int>(elements * element_bytes_), MPI_BYTE, peer, tag(slot), communicator_.comm,
                      &slot.requests.back()),
            "MPI_Isend");
}

void MpiTransfer::receive(MpiSlot& slot, int peer, std::byte* data, int64_t elements) {
  if (elements == 0) return;
  slot.requests.push_back(MPI_REQUEST_NULL);
  slot.expected.push_back(elements * element_bytes_);
  check_mpi(MPI_Irecv(data, static_cast<int>(elements * element_bytes_), MPI_BYTE, peer, tag(slot), communicator_.comm,
                      &slot.requests.back()),
            "MPI_Irecv");
}

int MpiTransfer::tag(const MpiSlot& slot) const {
  const auto operation = static_cast<int>(sequence_ % kTagOperations);
  const auto chunk = static_cast<int>(slot.chunk % kTagChunks);
  // What a parent sends in its second phase its child receives in the first.
  const int phase = collective_.kind == Kind::Broadcast ? 0 : slot.phase % kTagPhases;
  return (operation * static_cast<int>(kTagChunks) + chunk) * kTagPhases + phase;
}

MpiTransfer::Span MpiTransfer::span(const MpiSlot& slot) const {
  const int64_t begin = slot.chunk * chunk_elements_;
  return {begin, std::min(chunk_elements_, elements_ - begin)};
}

MpiTransfer::Span MpiTransfer::span(const MpiSlot& slot, const Span& part) const {
  const int64_t begin = std::min(slot.chunk * chunk_elements_, part.size);
  return {part.begin + begin, std::min(chunk_elements_, part.size - begin)};
}

MpiTransfer::Span MpiTransfer::slice(const MpiSlot& slot, int rank) const {
  const Span whole = span(slot);
  const int64_t per_rank = (whole.size + communicator_.size - 1) / communicator_.size;
  const int64_t begin = std::min(rank * per_rank, whole.size);
  return {whole.begin + begin, std::min(per_rank, whole.size - begin)};
}

}  // namespace meshtrain

// The messages of a chunk's phases: who sends what to whom.
#include <algorithm>
#include <cstring>

#include "mesh/backends/mpi/call.h"
#include "mesh/backends/mpi/transfer.h"

namespace meshtrain {
namespace {

using Kind = Collective::Kind;

// A tag is the operation, the chunk and the phase, each modulo a power of two: 15 bits, which every MPI allows.
// Messages of one tag never overtake each other, so a tag may come again once the chunk that it named is done.
constexpr uint32_t kTagOperations = 128;
constexpr int kTagPhases = 8;

/// Rows of a message as MPI counts them: bytes where they lie end to end, a type otherwise. MPI keeps the type until
/// the messages that were begun with it are through.
class MpiRows {
 public:
  MpiRows(int count, int64_t bytes, int64_t pitch) : count_(static_cast<int>(count * bytes)) {
    if (count == 1 || bytes == pitch) return;
    count_ = 1;
    check_mpi(MPI_Type_create_hvector(count, static_cast<int>(bytes), pitch, MPI_BYTE, &type_),
              "MPI_Type_create_hvector");
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~MpiRows() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }
  MpiRows(const MpiRows&) = delete;
  MpiRows& operator=(const MpiRows&) = delete;
  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_;
  MPI_Datatype type_ = MPI_BYTE;
};

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
      return post_reduction(slot, slot.phase);
    case Kind::AllGather:
      if (slot.phase == 0 && row(slot, rank) != input(part.begin)) {
        std::memcpy(row(slot, rank), input(part.begin), part.size * element_bytes_);
      }
      return post_gathering(slot, phases_ - 1 - slot.phase);
    case Kind::AllToAll: {
      for (int i = 1; i < communicator_.size; ++i) {
        const int from = peer(communicator_.size - i);
        const Span theirs = span(slot, received_[from]);
        receive(slot, from, output(theirs.begin), theirs.size * element_bytes_);
      }
      for (int i = 1; i < communicator_.size; ++i) {
        const Span theirs = span(slot, sent_[peer(i)]);
        send(slot, peer(i), input(theirs.begin), theirs.size * element_bytes_);
      }
      const Span to = span(slot, received_[rank]), from = span(slot, sent_[rank]);
      if (from.size > 0) std::memcpy(output(to.begin), input(from.begin), from.size * element_bytes_);
      return;
    }
    case Kind::Exchange:
      receive(slot, collective_.from, output(part.begin), part.size * element_bytes_);
      send(slot, collective_.to, input(part.begin), part.size * element_bytes_);
      return;
    case Kind::Message:
      if (collective_.from == rank) return send(slot, collective_.to, output(part.begin), part.size * element_bytes_);
      return receive(slot, collective_.from, output(part.begin), part.size * element_bytes_);
  }
}

void MpiTransfer::post_all_reduce(MpiSlot& slot) {
  if (one_round_) return post_one_round(slot);
  if (tree_) return post_tree(slot);
  const int steps = communicator_.grid.steps();
  if (slot.phase == 0 && is_padded(slot)) {
    const Span part = span(slot);
    const int64_t bytes = part.size * element_bytes_;
    const int64_t padded = communicator_.size * row_elements(slot, 0) * element_bytes_;
    std::byte* const copy = slot.padded.of(padded);
    std::memcpy(copy, output(part.begin), bytes);
    std::memset(copy + bytes, 0, padded - bytes);
  }
  slot.phase < steps ? post_reduction(slot, slot.phase) : post_gathering(slot, 2 * steps - 1 - slot.phase);
}

void MpiTransfer::finish(MpiSlot& slot) {
  if (collective_.kind != Kind::AllReduce || !is_padded(slot)) return;
  const Span part = span(slot);
  std::memcpy(output(part.begin), slot.padded.get(), part.size * element_bytes_);
}

void MpiTransfer::set_reduction(MpiSlot& slot, bool is_first, bool is_last, int64_t elements, std::byte* output) {
  const at::ScalarType dtype = collective_.output.scalar_type();
  const Reduce op = collective_.reduce;
  slot.kernel = is_first && is_last ? reduce_kernel(dtype, op)
                : is_first          ? partial_kernel(dtype, op)
                : is_last           ? rounding_kernel(dtype, op)
                                    : reduce_kernel(dtype_of_sums(dtype), op);
  slot.elements = elements;
  slot.part_bytes = is_first ? element_bytes_ : sum_bytes_;
  slot.result_bytes = is_last ? element_bytes_ : sum_bytes_;
  slot.result = is_last ? output : slot.sums.of(elements * sum_bytes_);
}

void MpiTransfer::post_one_round(MpiSlot& slot) {
  const int64_t bytes = elements_ * element_bytes_;
  std::byte* next = slot.received.of(bytes * (communicator_.size - 1));
  for (int rank = 0; rank < communicator_.size; ++rank) {
    slot.parts.push_back(rank == communicator_.rank ? output(0) : next);
    if (rank == communicator_.rank) continue;
    receive(slot, rank, next, bytes);
    next += bytes;
  }
  set_reduction(slot, true, true, elements_, output(0));
  for (int i = 1; i < communicator_.size; ++i) send(slot, peer(i), output(0), bytes);
}

void MpiTransfer::post_tree(MpiSlot& slot) {
  const int levels = communicator_.tree.levels();
  const bool up = slot.phase < levels;
  const int level = up ? slot.phase : 2 * levels - 1 - slot.phase;
  const std::vector<int> members = communicator_.tree.members(communicator_.rank, level);
  if (members.empty()) return;
  const bool leads = members.front() == communicator_.rank;
  const Span part = span(slot);
  if (!up) {
    const int64_t bytes = part.size * element_bytes_;
    if (!leads) return receive(slot, members.front(), output(part.begin), bytes);
    for (size_t i = 1; i < members.size(); ++i) send(slot, members[i], output(part.begin), bytes);
    return;
  }
  const bool is_first = level == 0;
  const int64_t bytes = part.size * (is_first ? element_bytes_ : sum_bytes_);
  const std::byte* const own = is_first ? output(part.begin) : slot.sums.get();
  if (!leads) return send(slot, members.front(), own, bytes);
  std::byte* next = slot.received.of(bytes * static_cast<int64_t>(members.size() - 1));
  slot.parts.push_back(own);
  for (size_t i = 1; i < members.size(); ++i, next += bytes) {
    slot.parts.push_back(next);
    receive(slot, members[i], next, bytes);
  }
  set_reduction(slot, is_first, level == levels - 1, part.size, output(part.begin));
}

/// Sends each partner the remaining rows whose numbers have its digit.
void MpiTransfer::post_reduction(MpiSlot& slot, int step) {
  const RankGrid& grid = communicator_.grid;
  const int radix = grid.radix(step), own = grid.digit(communicator_.rank, step);
  const int count = communicator_.size / grid.stride(step + 1);  // of rows for each partner
  const bool is_first = step == 0, is_last = step == grid.steps() - 1;
  const auto bytes_of = [&](int digit) {
    return is_first ? row_elements(slot, digit) * element_bytes_ : row_elements(slot, 0) * sum_bytes_;
  };
  const std::byte* const rows = is_first ? row(slot, 0) : slot.sums.get();
  const int64_t pitch = is_first ? row(slot, 1) - row(slot, 0) : bytes_of(0);
  const int64_t own_bytes = bytes_of(own), area = count * own_bytes;
  std::byte* const received = slot.received.of(radix * area);
  slot.parts.assign(static_cast<size_t>(radix), nullptr);
  for (int digit = 0; digit < radix; ++digit) slot.parts[static_cast<size_t>(digit)] = received + digit * area;
  for (int i = 1; i < radix; ++i) {
    const int digit = (own + radix - i) % radix;
    receive(slot, grid.with_digit(communicator_.rank, step, digit), received + digit * area, area);
  }
  for (int i = 1; i < radix; ++i) {
    const int digit = (own + i) % radix;
    send_rows(slot, grid.with_digit(communicator_.rank, step, digit), rows + digit * pitch, count, bytes_of(digit),
              radix * pitch);
  }
  if (count == 1) {
    slot.parts[static_cast<size_t>(own)] = rows + own * pitch;
  } else {
    for (int i = 0; i < count; ++i) {
      std::memcpy(received + own * area + i * own_bytes, rows + (own + i * radix) * pitch, own_bytes);
    }
  }
  const int64_t elements = count * (is_last ? row_elements(slot, communicator_.rank) : row_elements(slot, 0));
  std::byte* const result =
      collective_.kind == Kind::AllReduce ? row(slot, communicator_.rank) : output(span(slot).begin);
  set_reduction(slot, is_first, is_last, elements, result);
}

/// Sends the rows received so far: those whose numbers have this rank's digits up to `step`.
void MpiTransfer::post_gathering(MpiSlot& slot, int step) {
  const RankGrid& grid = communicator_.grid;
  const int radix = grid.radix(step), own = grid.digit(communicator_.rank, step);
  const int stride = grid.stride(step + 1), count = communicator_.size / stride;
  const int64_t pitch = stride * (row(slot, 1) - row(slot, 0));
  for (int i = 1; i < radix; ++i) {
    const int from = grid.with_digit(communicator_.rank, step, (own + radix - i) % radix);
    receive_rows(slot, from, row(slot, from % stride), count, row_elements(slot, from % stride) * element_bytes_,
                 pitch);
  }
  const int first = communicator_.rank % stride;
  for (int i = 1; i < radix; ++i) {
    send_rows(slot, grid.with_digit(communicator_.rank, step, (own + i) % radix), row(slot, first), count,
              row_elements(slot, first) * element_bytes_, pitch);
  }
}

bool MpiTransfer::is_padded(const MpiSlot& slot) const {
  return !one_round_ && !tree_ && communicator_.grid.steps() > 1 && span(slot).size % communicator_.size != 0;
}

std::byte* MpiTransfer::row(const MpiSlot& slot, int row) const {
  const Span part = span(slot);
  switch (collective_.kind) {
    case Kind::AllReduce: {
      const int64_t per_row = (part.size + communicator_.size - 1) / communicator_.size;
      return (is_padded(slot) ? slot.padded.get() : output(part.begin)) + row * per_row * element_bytes_;
    }
    case Kind::ReduceScatter:
      return const_cast<std::byte*>(input(row * elements_ + part.begin));
    default:
      return output(row * elements_ + part.begin);
  }
}

int64_t MpiTransfer::row_elements(const MpiSlot& slot, int row) const {
  const Span part = span(slot);
  if (collective_.kind != Kind::AllReduce) return part.size;
  const int64_t per_row = (part.size + communicator_.size - 1) / communicator_.size;
  if (is_padded(slot)) return per_row;
  return std::clamp<int64_t>(part.size - row * per_row, 0, per_row);
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
    if (relative != 0) receive(slot, absolute(relative ^ below), output(part.begin), part.size * element_bytes_);
    return;
  }
  for (int bit = below >> 1; bit > 0; bit >>= 1) {
    if (relative + bit < size) send(slot, absolute(relative + bit), output(part.begin), part.size * element_bytes_);
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

void MpiTransfer::send(MpiSlot& slot, int peer, const std::byte* data, int64_t bytes) {
  send_rows(slot, peer, data, 1, bytes, bytes);
}

void MpiTransfer::receive(MpiSlot& slot, int peer, std::byte* data, int64_t bytes) {
  receive_rows(slot, peer, data, 1, bytes, bytes);
}

void MpiTransfer::send_rows(MpiSlot& slot, int peer, const std::byte* data, int count, int64_t bytes, int64_t pitch) {
  if (bytes == 0) return;
  const MpiRows rows(count, bytes, pitch);
  slot.requests.push_back(MPI_REQUEST_NULL);
  slot.expected.push_back(-1);
  check_mpi(MPI_Isend(data, rows.count(), rows.type(), peer, tag(slot), communicator_.comm, &slot.requests.back()),
            "MPI_Isend");
}

void MpiTransfer::receive_rows(MpiSlot& slot, int peer, std::byte* data, int count, int64_t bytes, int64_t pitch) {
  if (bytes == 0) return;
  const MpiRows rows(count, bytes, pitch);
  slot.requests.push_back(MPI_REQUEST_NULL);
  slot.expected.push_back(count * bytes);
  check_mpi(MPI_Irecv(data, rows.count(), rows.type(), peer, tag(slot), communicator_.comm, &slot.requests.back()),
            "MPI_Irecv");
}

// Ranks that issue different operations must not take each other's messages, which may have the same length: they wait,
// and the watch says for what. So the kind of an operation is added to its number.
int MpiTransfer::tag(const MpiSlot& slot) const {
  constexpr uint32_t kKindStep = 8;  // 16 of them are different modulo the 128 operations
  const uint32_t kind = 2 * static_cast<uint32_t>(collective_.kind) + (collective_.reduce == Reduce::Max ? 1 : 0);
  const auto operation = static_cast<int>((sequence_ + kKindStep * kind) % kTagOperations);
  const auto chunk = static_cast<int>(slot.chunk % kTagChunks);
  // A child receives in its first phase what its parent sends in the second.
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

}  // namespace meshtrain

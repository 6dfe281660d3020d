#include "mesh/backends/mpi/transfer.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "mesh/backends/mpi/call.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using Kind = Collective::Kind;

/// All-reduces up to this size are one round in groups up to MpiOptions::fan_out, as latency counts, not bandwidth. In
/// larger ones those up to that size for each rank go through a tree: slices of fewer bytes would cost more messages.
constexpr int64_t kShortBytes = 16 << 10;
constexpr int64_t kTreeBytes = 1 << 10;
/// The bytes that a tree sums at a time.
constexpr int64_t kTreeChunkBytes = 256 << 10;

/// The number of pieces in which received parts wait to be reduced, for each communicator.
constexpr int64_t kScratchPieces = 8;

/// The bytes read in a reduction before other queues get their turn.
constexpr int64_t kReduceBytes = 1 << 20;

const void* data_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr;
}

}  // namespace

MpiTransfer::MpiTransfer(MpiCommunicator& communicator, const Collective& collective)
    : MpiOperation(collective.mark),
      communicator_(communicator),
      collective_(collective),
      purpose_(collective.purpose),
      group_(collective.group),
      coordinate_(collective.coordinate) {
  collective_.purpose = purpose_;
  collective_.group = group_;
  collective_.coordinate = coordinate_;
  const auto refuse = [&](const std::string& problem) {
    throw RankError<std::invalid_argument>(describe(collective_, communicator_.size) + ": " + problem);
  };
  if (collective.output.defined()) {
    if (!collective.output.is_cpu()) refuse("MPI moves host tensors only");
    output_ = static_cast<std::byte*>(const_cast<void*>(data_of(collective.output)));
    input_ = static_cast<const std::byte*>(data_of(collective.input));
    element_bytes_ = static_cast<int64_t>(collective.output.element_size());
  }
  if (collective.kind == Kind::AllReduce || collective.kind == Kind::ReduceScatter) {
    reduces_ = true;
    sum_bytes_ = static_cast<int64_t>(c10::elementSize(dtype_of_sums(collective.output.scalar_type())));
    if (!reduce_kernel(collective.output.scalar_type(), collective.reduce))
      refuse("fp64, fp32, bf16, fp16 and int64 can be reduced; other dtypes can only be moved");
  }
  sequence_ = communicator.issued++;
  cut_into_chunks();
}

void MpiTransfer::cut_into_chunks() {
  const int size = communicator_.size;
  const int64_t numel = collective_.output.defined() ? collective_.output.numel() : 0;
  const int64_t piece_bytes = std::min<int64_t>(communicator_.options.piece_bytes, std::numeric_limits<int>::max());
  int64_t piece_elements = piece_bytes / element_bytes_;
  if (reduces_ || collective_.kind == Kind::AllGather) {
    const RankGrid& grid = communicator_.grid;
    const int64_t rows = size / grid.radix(0);  // in the longest message
    piece_elements = piece_bytes / rows / (grid.steps() > 1 ? std::max(sum_bytes_, element_bytes_) : element_bytes_);
    const int64_t pieces = int64_t{MpiCommunicator::kInFlight} * (size - 1);
    if (reduces_) piece_elements = std::min(piece_elements, kScratchPieces * piece_bytes / pieces / element_bytes_);
    phases_ = grid.steps();
  }
  chunk_elements_ = std::max<int64_t>(piece_elements, 1);

  switch (collective_.kind) {
    case Kind::AllReduce:
      elements_ = numel;
      one_round_ =
          size <= communicator_.options.fan_out && numel * element_bytes_ <= std::min(kShortBytes, piece_bytes);
      tree_ = size > communicator_.options.fan_out && numel * element_bytes_ <= kTreeBytes * size;
      phases_ = one_round_ ? 1 : 2 * (tree_ ? communicator_.tree.levels() : communicator_.grid.steps());
      chunk_elements_ = one_round_ ? std::max<int64_t>(numel, 1)
                        : tree_    ? std::max<int64_t>(std::min(kTreeChunkBytes, piece_bytes) / sum_bytes_, 1)
                                   : chunk_elements_ * size;
      break;
    case Kind::AllGather:
      elements_ = numel / size;
      break;
    case Kind::AllToAll:
      received_ = parts(collective_.output, collective_.received);
      sent_ = parts(collective_.input, collective_.sent);
      for (const std::vector<Span>* spans : {&received_, &sent_}) {
        for (const Span& part : *spans) elements_ = std::max(elements_, part.size);
      }
      break;
    case Kind::Broadcast:
      elements_ = numel;
      phases_ = 2;
      break;
    case Kind::ReduceScatter:
    case Kind::Exchange:
    case Kind::Message:
      elements_ = numel;
      break;
    case Kind::Barrier:
      elements_ = 1;
      phases_ = 0;
      while ((int64_t{1} << phases_) < size) ++phases_;
      break;
  }
  chunks_ = (elements_ + chunk_elements_ - 1) / chunk_elements_;
}

std::vector<MpiTransfer::Span> MpiTransfer::parts(const at::Tensor& full, const std::vector<int64_t>& rows) const {
  std::vector<Span> parts;
  int64_t begin = 0;
  for (int rank = 0; rank < communicator_.size; ++rank) {
    const int64_t row_elements = rows.empty() || full.size(0) == 0 ? 0 : full.numel() / full.size(0);
    const int64_t size = rows.empty() ? full.numel() / communicator_.size : rows[rank] * row_elements;
    parts.push_back({begin, size});
    begin += size;
  }
  return parts;
}

void MpiTransfer::release() {
  collective_.output.reset();
  collective_.input.reset();
}

bool MpiTransfer::may_start_chunk() const {
  if (next_chunk_ == chunks_) return false;
  const auto tells_apart = [&](const MpiSlot& slot) { return !slot.busy || slot.chunk + kTagChunks > next_chunk_; };
  return std::all_of(communicator_.slots.begin(), communicator_.slots.end(), tells_apart);
}

bool MpiTransfer::advance() {
  try {
    return advance_chunks();
  } catch (const std::runtime_error& error) {
    throw RankError<std::runtime_error>(describe(collective_, communicator_.size) + ": " + error.what());
  }
}

bool MpiTransfer::advance_chunks() {
  bool moved = false;
  for (MpiSlot& slot : communicator_.slots) {
    if (!slot.busy) {
      if (!may_start_chunk()) continue;
      slot.busy = true;
      slot.chunk = next_chunk_++;
      slot.phase = 0;
      ++in_flight_;
      post(slot);
      moved = true;
    }
    moved |= step(slot);
  }
  return moved;
}

bool MpiTransfer::step(MpiSlot& slot) {
  if (!arrived(slot)) return false;
  if (!slot.parts.empty() && !reduce_some(slot)) return true;
  slot.parts.clear();
  if (++slot.phase < phases_) {
    post(slot);
  } else {
    finish(slot);
    slot.busy = false;
    --in_flight_;
  }
  return true;
}

bool MpiTransfer::arrived(MpiSlot& slot) {
  if (slot.requests.empty()) return true;
  slot.statuses.resize(slot.requests.size());
  int all = 0;
  const int code =
      MPI_Testall(static_cast<int>(slot.requests.size()), slot.requests.data(), &all, slot.statuses.data());
  if (code == MPI_SUCCESS && !all) return false;
  for (size_t i = 0; i < slot.requests.size(); ++i) {
    const MPI_Status& status = slot.statuses[i];
    if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_ERR_PENDING) check_message(status, status.MPI_ERROR, -1);
    if (code == MPI_SUCCESS) check_message(status, code, slot.expected[i]);
  }
  check_mpi(code, "MPI_Testall");
  slot.requests.clear();
  slot.expected.clear();
  return true;
}

void MpiTransfer::check_message(const MPI_Status& status, int code, int64_t expected) const {
  int error = code;
  int bytes = -1;
  MPI_Error_class(code, &error);
  if (error == MPI_SUCCESS && expected >= 0) MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (error == MPI_ERR_TRUNCATE || (bytes >= 0 && bytes != expected)) {
    throw std::runtime_error("group rank " + std::to_string(status.MPI_SOURCE) +
                             " sent a message of another length: the ranks called with different tensors");
  }
  check_mpi(code, "a message");
}

bool MpiTransfer::reduce_some(MpiSlot& slot) {
  const auto ranks = static_cast<int>(slot.parts.size());
  const int64_t count = std::min(std::max<int64_t>(kReduceBytes / ranks / slot.part_bytes, 1), slot.elements);
  if (count > 0) {
    slot.kernel(slot.parts.data(), ranks, slot.result, count);
    for (const std::byte*& part : slot.parts) part += count * slot.part_bytes;
    slot.result += count * slot.result_bytes;
    slot.elements -= count;
  }
  return slot.elements == 0;
}

}  // namespace meshtrain

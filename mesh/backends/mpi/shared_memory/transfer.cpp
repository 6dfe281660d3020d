#include "mesh/backends/mpi/shared_memory/transfer.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using Kind = Collective::Kind;

/// All-reduces up to this size are computed in full by every rank: one step instead of two.
constexpr int64_t kShortOnBoardBytes = 16 << 10;

/// The largest call that goes over the board rather than through MPI on one host, in bytes of the full tensor;
/// measured (docs/benchmarks.md).
constexpr int64_t kBoardBytes = 256 << 10;

/// Chunks that cross hosts at the same time, and the bytes of each.
constexpr int kLanes = 3;
constexpr int64_t kLaneBytes = 1 << 20;

/// Slices begin at cache lines where tensors do.
constexpr int64_t kSliceElements = 64;

}  // namespace

bool HostTransfer::takes(const MpiCommunicator& communicator, const Collective& collective) {
  if (!communicator.board) return false;
  switch (collective.kind) {
    case Kind::AllReduce:
    case Kind::AllGather:
    case Kind::ReduceScatter:
      return collective.output.numel() > 0;
    case Kind::Barrier:
      return !communicator.board->across();
    default:
      return false;
  }
}

HostTransfer::HostTransfer(MpiCommunicator& communicator, const Collective& collective)
    : MpiOperation(collective.mark),
      through_mpi_(communicator, collective),
      communicator_(communicator),
      board_(*communicator.board),
      layout_(board_.layout()),
      kind_(collective.kind) {
  notice_.kind = static_cast<int64_t>(kind_);
  if (kind_ == Kind::Barrier) {
    path_ = Path::Window;
    return;
  }
  const at::ScalarType dtype = collective.output.scalar_type();
  const at::Tensor& tensor = kind_ == Kind::ReduceScatter ? collective.input : collective.output;
  const at::Tensor& shard = kind_ == Kind::AllGather ? collective.input : collective.output;
  output_ = static_cast<std::byte*>(const_cast<void*>(collective.output.const_data_ptr()));
  if (collective.input.defined()) input_ = static_cast<const std::byte*>(collective.input.const_data_ptr());
  element_bytes_ = static_cast<int64_t>(collective.output.element_size());
  elements_ = shard.numel();
  sum_bytes_ = static_cast<int64_t>(c10::elementSize(dtype_of_sums(dtype)));
  if (kind_ != Kind::AllGather) {
    reduce_ = layout_.hosts == 1 ? reduce_kernel(dtype, collective.reduce) : partial_kernel(dtype, collective.reduce);
    if (sum_bytes_ != element_bytes_) round_ = rounding_kernel(dtype);
  }

  window_ = HostWindow::around(tensor);
  if (window_ && window_->is_common() && kind_ == Kind::AllReduce) {
    throw RankError<std::invalid_argument>(
        describe(collective, communicator.size) +
        ": the ranks of a host share one copy of the tensor (Placement::Common), and a sum would add this copy to "
        "itself: use reduce_scatter into each rank's part of it");
  }
  if (window_ && kind_ == Kind::ReduceScatter && output_ >= input_ && output_ < input_ + tensor.nbytes()) {
    // Another rank's part would be overwritten before that rank has read it.
    const int64_t part = (output_ - input_) / (elements_ * element_bytes_);
    if (!layout_.has_this_local_rank(static_cast<int>(part))) window_.reset();
  }
  if (window_) {
    notice_.window = static_cast<int64_t>(window_->mapping().id());
    notice_.offset = static_cast<const std::byte*>(tensor.const_data_ptr()) - window_->mapping().base();
  }
  notice_.dtype = static_cast<int64_t>(dtype);
  notice_.reduce = static_cast<int64_t>(collective.reduce);
  notice_.elements = elements_;
  if (!window_) settle_path();
}

HostTransfer::~HostTransfer() = default;

void HostTransfer::release() {
  through_mpi_.release();
  window_.reset();
}

/// Chooses board or MPI where the tensors do not lie in one window, by size alone, so that every rank chooses alike.
/// Sums of more ranks than MPI's messages take in one order never go through MPI: a group without a window must sum in
/// the order of its siblings that have one.
void HostTransfer::settle_path() {
  const int64_t bytes = elements_ * element_bytes_ * (kind_ == Kind::AllReduce ? 1 : communicator_.size);
  const bool reduces = kind_ == Kind::AllReduce || kind_ == Kind::ReduceScatter;
  const bool has_other_order = reduces && communicator_.size > communicator_.options.fan_out;
  path_ = layout_.hosts == 1 && bytes > kBoardBytes && !has_other_order ? Path::Mpi : Path::Board;
  window_.reset();
}

bool HostTransfer::open() {
  if (!opened_) {
    // In common memory all ranks can read a shard before it is announced.
    if (window_ && window_->is_common() && kind_ == Kind::AllGather) {
      std::byte* const own = output(communicator_.rank * elements_);
      if (own != input_) std::memcpy(own, input_, elements_ * element_bytes_);
    }
    board_.open(notice_);
    opened_ = true;
    if (path_ == Path::Board) cut_into_chunks();
    return true;
  }
  if (compared_ || !board_.everyone_published(HostBoard::kOpening)) return false;
  compare_notices();
  compared_ = true;
  if (path_ == Path::Unknown) {
    peers_.resize(static_cast<size_t>(layout_.local_size));
    shared_ = window_->is_common();
    for (int local_rank = 0; local_rank < layout_.local_size; ++local_rank) {
      const HostBoard::Notice& notice = board_.notice_of(local_rank);
      if (notice.window != notice_.window) {
        settle_path();
        break;
      }
      shared_ = shared_ && notice.offset == notice_.offset;
      peers_[local_rank] = window_->mapping().base() + notice.offset;
    }
    if (path_ == Path::Unknown) path_ = Path::Window;
    if (path_ != Path::Mpi) cut_into_chunks();
  }
  return true;
}

void HostTransfer::compare_notices() const {
  for (int local_rank = 0; local_rank < layout_.local_size; ++local_rank) {
    if (board_.notice_of(local_rank).same_call(notice_)) continue;
    throw RankError<std::runtime_error>(
        describe(through_mpi_.collective(), communicator_.size) + ": group rank " +
        std::to_string(on_this_host(local_rank)) +
        " made a different call: ranks must call with matching tensors and in the same order");
  }
}

void HostTransfer::cut_into_chunks() {
  const bool one_host = layout_.hosts == 1;
  const bool all_reduce = kind_ == Kind::AllReduce;
  const bool on_board = path_ == Path::Board;
  chunk_elements_ = std::max<int64_t>(elements_, 1);
  if (!one_host) {  // by shapes alone: hosts may differ in their path
    const int64_t rows = all_reduce ? 1 : layout_.hosts;
    int64_t row = kLaneBytes / rows / (kind_ == Kind::AllGather ? element_bytes_ : sum_bytes_);
    if (all_reduce) row = row / kSliceElements * kSliceElements * layout_.local_size;
    chunk_elements_ = std::clamp<int64_t>(row, 1, chunk_elements_);
  }
  // In common memory of one host there is nothing to do once everyone has come.
  const bool nothing = one_host && shared_ && kind_ == Kind::AllGather;
  chunks_ = nothing ? 0 : (elements_ + chunk_elements_ - 1) / chunk_elements_;
  lanes_.resize(one_host ? 1 : kLanes);

  const int64_t row = row_elements({0, chunk_elements_});
  piece_elements_ = row;
  if (on_board) {
    const int64_t rows = all_reduce                     ? layout_.local_size
                         : kind_ == Kind::ReduceScatter ? communicator_.size
                                                        : layout_.hosts;
    piece_elements_ = std::min(row, HostBoard::kPieceBytes / rows / element_bytes_);
    if (piece_elements_ == 0) {
      throw RankError<std::runtime_error>(describe(through_mpi_.collective(), communicator_.size) + ": " +
                                          "a piece of " + std::to_string(HostBoard::kPieceBytes) +
                                          " bytes on the host's board has no room for a value of each of " +
                                          std::to_string(rows) + " ranks: set MESHTRAIN_WINDOW_MIB=0");
    }
  }
  short_ = all_reduce && one_host && on_board && elements_ * element_bytes_ <= kShortOnBoardBytes;
  if (one_host) return;

  const int64_t scratch = full_pages(row * (all_reduce ? 1 : layout_.hosts) * std::max(sum_bytes_, element_bytes_));
  const int64_t summed = kind_ == Kind::ReduceScatter ? full_pages(row * sum_bytes_) : 0;
  std::vector<std::byte>& memory = communicator_.scratch;
  const auto needed = static_cast<size_t>(kLanes * (scratch + summed));
  if (memory.size() < needed) memory.resize(needed);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].scratch = memory.data() + static_cast<int64_t>(i) * (scratch + summed);
    lanes_[i].summed = lanes_[i].scratch + scratch;
  }
}

/// Returns true when no peer reads or writes this rank's tensors any more.
bool HostTransfer::close() {
  const bool waits = path_ == Path::Window && chunks_ > 0;
  if (waits && !closing_) {
    board_.publish(HostBoard::kOutward);
    closing_ = true;
  }
  done_ = !waits || board_.everyone_published(HostBoard::kOutward);
  return done_;
}

bool HostTransfer::advance() {
  bool moved = false;
  if (!opened_ || (path_ != Path::Mpi && !compared_)) moved = open();
  if (path_ == Path::Mpi) return through_mpi_.advance() || moved;
  if (path_ == Path::Unknown) return moved;
  moved |= pump();
  if (compared_ && next_chunk_ == chunks_ && collected_ == chunks_) moved |= close();
  return moved;
}

bool HostTransfer::pump() {
  bool moved = advance_across();
  for (Lane& lane : lanes_) {
    if (lane.stage == Stage::Free && next_chunk_ < chunks_) {
      lane.chunk = next_chunk_++;
      lane.stage = Stage::Lay;
      lane.piece = 0;
      lane.moved = 0;
      moved = true;
    }
    while (lane.stage != Stage::Free && step(lane)) {
      moved = true;
      if (lane.moved > 0) break;  // in the middle of a stage: others get their turn
    }
  }
  return moved;
}

bool HostTransfer::step(Lane& lane) {
  switch (lane.stage) {
    case Stage::Free:
      return false;
    case Stage::Lay:
      return reduced_ == lane.chunk && lay(lane);
    case Stage::Reduce:
      return compared_ && reduced_ == lane.chunk && reduce(lane);
    case Stage::Across:
      return go_across(lane);
    case Stage::Deliver:
      return collected_ == lane.chunk && deliver(lane);
    case Stage::Collect:
      return collect(lane);
  }
  return false;
}

HostTransfer::Span HostTransfer::span(const Lane& lane) const {
  const int64_t begin = lane.chunk * chunk_elements_;
  return {begin, std::min(chunk_elements_, elements_ - begin)};
}

HostTransfer::Span HostTransfer::slice(const Span& chunk, int local_rank) const {
  const int64_t even = (chunk.size + layout_.local_size - 1) / layout_.local_size;
  const int64_t size = (even + kSliceElements - 1) / kSliceElements * kSliceElements;
  const int64_t begin = std::min(local_rank * size, chunk.size);
  return {begin, std::min(size, chunk.size - begin)};
}

int64_t HostTransfer::row_elements(const Span& chunk) const {
  return kind_ == Kind::AllReduce ? slice(chunk, 0).size : chunk.size;
}

HostTransfer::Span HostTransfer::piece(const Lane& lane, int local_rank) const {
  const Span chunk = span(lane);
  const int64_t row = kind_ == Kind::AllReduce ? slice(chunk, local_rank).size : chunk.size;
  const int64_t begin = std::min(lane.piece * piece_elements_, row);
  return {begin, std::min(piece_elements_, row - begin)};
}

bool HostTransfer::is_last_piece(const Lane& lane) const {
  return (lane.piece + 1) * piece_elements_ >= row_elements(span(lane));
}

}  // namespace meshtrain

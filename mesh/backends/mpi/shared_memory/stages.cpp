// The stages of a chunk: who reads and writes what, in windows and on the board.
#include <algorithm>
#include <cstring>

#include "mesh/backends/mpi/shared_memory/transfer.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using Kind = Collective::Kind;

/// The bytes read before other queues get their turn.
constexpr int64_t kTurnBytes = 1 << 20;

/// The bytes of a result that are copied at a time, from the cache in which they were computed.
constexpr int64_t kBlockBytes = 16 << 10;

}  // namespace

bool HostTransfer::next(Lane& lane, Stage stage, int64_t piece) {
  lane.stage = stage;
  lane.piece = piece;
  lane.moved = 0;
  return true;
}

bool HostTransfer::lay(Lane& lane) {
  if (path_ != Path::Board || kind_ == Kind::AllGather) return next(lane, Stage::Reduce, lane.piece);
  const bool all_reduce = kind_ == Kind::AllReduce;
  const Span chunk = span(lane);
  std::byte* to = board_.piece(HostBoard::kInward);
  for (int row = 0; row < (all_reduce ? layout_.local_size : communicator_.size); ++row) {
    const Span part = piece(lane, row);
    const std::byte* const from = all_reduce ? output(chunk.begin + slice(chunk, row).begin + part.begin)
                                             : input(row * elements_ + chunk.begin + part.begin);
    std::memcpy(to, from, part.size * element_bytes_);
    to += piece_elements_ * element_bytes_;
  }
  board_.publish(HostBoard::kInward);
  return next(lane, Stage::Reduce, lane.piece);
}

bool HostTransfer::reduce(Lane& lane) {
  const bool one_host = layout_.hosts == 1;
  const bool on_board = path_ == Path::Board;
  const bool all_reduce = kind_ == Kind::AllReduce;
  if (kind_ != Kind::AllGather) {
    if (on_board && !board_.everyone_published(HostBoard::kInward)) return false;
    if (!reduce_some(lane)) return true;
  }
  // Sums of one host that are on the board go to everyone before the next are made there.
  if (one_host && all_reduce && !short_ && on_board) {
    if (is_last_piece(lane)) ++reduced_;
    return next(lane, Stage::Deliver, lane.piece);
  }
  if (kind_ != Kind::AllGather && !is_last_piece(lane)) return next(lane, Stage::Lay, lane.piece + 1);
  ++reduced_;
  if (!one_host) start_across(lane);
  return next(lane, one_host ? Stage::Deliver : Stage::Across, 0);
}

/// Returns true when the piece is reduced.
bool HostTransfer::reduce_some(Lane& lane) {
  const bool one_host = layout_.hosts == 1;
  const bool on_board = path_ == Path::Board;
  const bool all_reduce = kind_ == Kind::AllReduce;
  const Span chunk = span(lane);
  const Span mine = short_ ? chunk : piece(lane, layout_.local_rank);
  const int64_t total = mine.size * (all_reduce ? 1 : layout_.hosts);
  if (total == 0) return true;
  const Span now = portion(lane, mine.size);
  const auto row = static_cast<int>(lane.moved / mine.size);

  // The offset in the tensors, to which a sum of one host goes as well, and that on the board.
  int64_t element = chunk.begin + mine.begin + now.begin;
  int64_t laid = now.begin;
  if (all_reduce && !short_) {
    element += slice(chunk, layout_.local_rank).begin;
    laid += layout_.local_rank * piece_elements_;
  } else if (!all_reduce) {
    laid += on_host(row) * piece_elements_;
  }
  const int64_t in_peers = element + (all_reduce ? 0 : on_host(row) * elements_);
  std::vector<const std::byte*>& parts = communicator_.parts;
  parts.resize(static_cast<size_t>(layout_.local_size));
  for (int local_rank = 0; local_rank < layout_.local_size; ++local_rank) {
    parts[local_rank] = on_board ? board_.piece_of(local_rank, HostBoard::kInward) + laid * element_bytes_
                                 : peers_[local_rank] + in_peers * element_bytes_;
  }
  if (one_host && all_reduce && !on_board) {
    reduce_for_all(element, now.size);
  } else {
    std::byte* result = output(element);
    if (!one_host) {
      result = lane.scratch + (row * row_elements(chunk) + mine.begin + now.begin) * sum_bytes_;
    } else if (all_reduce && !short_) {
      result = board_.piece(HostBoard::kOutward) + now.begin * element_bytes_;
    }
    reduce_(parts.data(), layout_.local_size, result, now.size);
  }
  lane.moved += now.size;
  return lane.moved == total;
}

/// Each block goes to everyone from the cache that its sum is in.
void HostTransfer::reduce_for_all(int64_t element, int64_t count) {
  std::vector<const std::byte*>& parts = communicator_.parts;
  const int64_t block = kBlockBytes / element_bytes_;
  for (const int64_t end = element + count; element < end; element += block) {
    const int64_t size = std::min(block, end - element);
    reduce_(parts.data(), layout_.local_size, output(element), size);
    for (const std::byte*& part : parts) part += size * element_bytes_;
    copy_to_peers(element, output(element), size);
  }
}

/// Copies from this rank's tensor, or memory of its own, to the same offset in the tensors of the others on this host.
void HostTransfer::copy_to_peers(int64_t element, const std::byte* from, int64_t count) {
  for (int i = 1; i < layout_.local_size; ++i) {
    std::byte* const peer = peers_[(layout_.local_rank + i) % layout_.local_size];
    std::memcpy(peer + element * element_bytes_, from, count * element_bytes_);
  }
}

void HostTransfer::start_across(Lane& lane) {
  const Collective& call = through_mpi_.collective();
  const Span chunk = span(lane);
  const auto options = at::TensorOptions().dtype(call.output.scalar_type());
  const auto sums = options.dtype(dtype_of_sums(call.output.scalar_type()));
  Collective across = call;
  switch (kind_) {
    case Kind::AllReduce:
      across.output = at::from_blob(lane.scratch, {slice(chunk, layout_.local_rank).size}, sums);
      break;
    case Kind::ReduceScatter:
      across.input = at::from_blob(lane.scratch, {layout_.hosts * chunk.size}, sums);
      across.output = round_ ? at::from_blob(lane.summed, {chunk.size}, sums)
                             : at::from_blob(output(chunk.begin), {chunk.size}, sums);
      break;
    default:
      across.input = at::from_blob(const_cast<std::byte*>(input(chunk.begin)), {chunk.size}, options);
      across.output = at::from_blob(lane.scratch, {layout_.hosts * chunk.size}, options);
  }
  lane.across = std::make_shared<MpiTransfer>(*board_.across(), across);
  across_.push_back(lane.across);
}

bool HostTransfer::advance_across() {
  bool moved = false;
  while (!across_.empty()) {
    moved |= across_.front()->advance();
    if (!across_.front()->finished()) break;
    across_.pop_front();
  }
  return moved;
}

bool HostTransfer::go_across(Lane& lane) {
  const bool waiting = std::find(across_.begin(), across_.end(), lane.across) != across_.end();
  if (waiting) return false;
  lane.across.reset();
  return next(lane, Stage::Deliver, 0);
}

/// Delivers sums. On one host they are in the output already, but for those on the board, which are announced here.
bool HostTransfer::deliver(Lane& lane) {
  const Span chunk = span(lane);
  if (kind_ == Kind::ReduceScatter) {
    const std::byte* const summed = lane.summed;
    if (layout_.hosts > 1 && round_) round_(&summed, 1, output(chunk.begin), chunk.size);
  } else if (kind_ == Kind::AllGather || layout_.hosts > 1) {
    const int64_t size = piece(lane, layout_.local_rank).size;
    const int64_t total = size * (kind_ == Kind::AllGather ? layout_.hosts : 1);
    if (total > 0) {
      const Span now = portion(lane, size);
      kind_ == Kind::AllGather ? deliver_shards(lane, now) : deliver_sums(lane, now);
      lane.moved += now.size;
      if (lane.moved < total) return true;
    }
  }
  if (path_ == Path::Board && kind_ != Kind::ReduceScatter && !short_) board_.publish(HostBoard::kOutward);
  return next(lane, Stage::Collect, lane.piece);
}

/// Copies the rounded sums of all hosts to every rank of this one.
void HostTransfer::deliver_sums(const Lane& lane, const Span& now) {
  const bool on_board = path_ == Path::Board;
  const Span chunk = span(lane);
  const int64_t begin = piece(lane, layout_.local_rank).begin;
  const int64_t first = chunk.begin + slice(chunk, layout_.local_rank).begin + begin;
  const int64_t block = kBlockBytes / sum_bytes_;
  for (int64_t at = now.begin; at < now.begin + now.size; at += block) {
    const int64_t count = std::min(block, now.begin + now.size - at);
    const std::byte* const sum = lane.scratch + (begin + at) * sum_bytes_;
    std::byte* const to = on_board ? board_.piece(HostBoard::kOutward) + at * element_bytes_ : output(first + at);
    if (round_) {
      round_(&sum, 1, to, count);
    } else {
      std::memcpy(to, sum, count * element_bytes_);
    }
    if (!on_board) copy_to_peers(first + at, to, count);
  }
}

/// Copies the shards of ranks with this local rank, a row for each host.
void HostTransfer::deliver_shards(const Lane& lane, const Span& now) {
  const Span chunk = span(lane);
  const Span mine = piece(lane, layout_.local_rank);
  const auto row = static_cast<int>(lane.moved / mine.size);
  const std::byte* const rows = layout_.hosts == 1 ? input(chunk.begin) : lane.scratch;
  const std::byte* const from = rows + (row * chunk.size + mine.begin + now.begin) * element_bytes_;
  if (path_ == Path::Board) {
    std::byte* const to = board_.piece(HostBoard::kOutward) + (row * piece_elements_ + now.begin) * element_bytes_;
    std::memcpy(to, from, now.size * element_bytes_);
    return;
  }
  const int64_t element = on_host(row) * elements_ + chunk.begin + mine.begin + now.begin;
  const int64_t block = kBlockBytes / element_bytes_;
  for (int64_t at = 0; at < now.size; at += block) {
    const int64_t count = std::min(block, now.size - at);
    const std::byte* const source = from + at * element_bytes_;
    if (source != output(element + at)) std::memcpy(output(element + at), source, count * element_bytes_);
    if (!shared_) copy_to_peers(element + at, source, count);
  }
}

bool HostTransfer::collect(Lane& lane) {
  const bool all_reduce = kind_ == Kind::AllReduce;
  const bool pieces = path_ == Path::Board && kind_ != Kind::ReduceScatter && !short_;
  if (pieces) {
    if (!compared_ || !board_.everyone_published(HostBoard::kOutward)) return false;
    const Span chunk = span(lane);
    for (int local_rank = 0; local_rank < layout_.local_size; ++local_rank) {
      const std::byte* from = board_.piece_of(local_rank, HostBoard::kOutward);
      const Span part = piece(lane, local_rank);
      for (int host = 0; host < (all_reduce ? 1 : layout_.hosts); ++host) {
        const int64_t first =
            all_reduce ? slice(chunk, local_rank).begin : layout_.rank_at(host, local_rank) * elements_;
        std::byte* const to = output(first + chunk.begin + part.begin);
        const bool in_place = !all_reduce && to == input(chunk.begin + part.begin);
        if (!in_place) std::memcpy(to, from, part.size * element_bytes_);
        from += piece_elements_ * element_bytes_;
      }
    }
    if (!is_last_piece(lane)) {
      return next(lane, all_reduce && layout_.hosts == 1 ? Stage::Lay : Stage::Deliver, lane.piece + 1);
    }
  }
  ++collected_;
  return next(lane, Stage::Free, 0);
}

HostTransfer::Span HostTransfer::portion(const Lane& lane, int64_t row) const {
  const int64_t begin = lane.moved % row;
  const int64_t turn = std::max<int64_t>(kTurnBytes / layout_.local_size / element_bytes_, 1);
  return {begin, std::min(turn, row - begin)};
}

}  // namespace meshtrain

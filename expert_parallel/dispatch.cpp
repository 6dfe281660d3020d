#include "expert_parallel/dispatch.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "expert_parallel/row_arithmetic.h"
#include "mesh/device/aten.h"
#include "mesh/device/device_transfer.h"
#include "mesh/device/empty_rows.h"

namespace meshtrain {
namespace {

using Numbers = std::vector<int64_t>;

thread_local bool routes_worst = false;

int64_t sum(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

/// Returns the pieces of `own` experts of each rank: two halves.
std::vector<Range> pieces_of(int64_t own) {
  const int64_t half = (own + 1) / 2;
  if (half == own) return {{0, own}};
  return {{0, half}, {half, own - half}};
}

/// Returns the experts of all ranks in the order in which their rows are sorted: by piece, then by rank.
Numbers order_of_travel(int64_t num_experts, int64_t num_ranks) {
  const int64_t own = num_experts / num_ranks;
  Numbers experts;
  for (const Range& piece : pieces_of(own)) {
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      for (int64_t i = 0; i < piece.numel; ++i) experts.push_back(rank * own + piece.offset + i);
    }
  }
  return experts;
}

/// Returns choices [T, k] with each expert's number in the order of travel; dropped pairs stay dropped.
at::Tensor in_order_of_travel(const at::Tensor& choices, const Numbers& experts) {
  if (std::ranges::is_sorted(experts) || choices.is_meta()) return choices;
  const auto num_experts = static_cast<int64_t>(experts.size());
  const at::Tensor numbers = at::full({num_experts + 1}, num_experts, at::kLong);
  for (size_t i = 0; i < experts.size(); ++i) numbers.data_ptr<int64_t>()[experts[i]] = static_cast<int64_t>(i);
  return rows_at(to_device(numbers, choices.device()), choices.flatten()).view(choices.sizes());
}

/// Returns where row r of the experts is among the rows that arrive by rank, then by expert; undefined for one expert.
at::Tensor order_of(const Numbers& arriving, int64_t num_ranks, int64_t num_own, const at::Tensor& like) {
  if (num_own == 1 || num_ranks == 1) return {};
  Numbers first(arriving.size());
  std::exclusive_scan(arriving.begin(), arriving.end(), first.begin(), int64_t{0});
  if (like.is_meta()) return at::empty({sum(arriving)}, like.options());
  const at::Tensor order = at::empty({sum(arriving)}, at::kLong);
  int64_t* next = order.data_ptr<int64_t>();
  for (int64_t expert = 0; expert < num_own; ++expert) {
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      const auto part = static_cast<size_t>(rank * num_own + expert);
      std::iota(next, next + arriving[part], first[part]);
      next += arriving[part];
    }
  }
  return to_device(order, like.device());
}

/// The numbers [ep][E/ep] of rows that leave to and arrive from each rank.
struct Counts {
  Numbers leaving, arriving;
};

/// Returns the assumption on the Meta device: every rank sends this rank's numbers.
Counts balanced_counts(const ExpertRows& rows, const Group& ep) {
  Counts counts;
  for_groups(rows.starts, [&](int64_t, int64_t, int64_t count) { counts.leaving.push_back(count); });
  const int64_t own = static_cast<int64_t>(counts.leaving.size()) / ep.size();
  const auto first = counts.leaving.begin() + own * ep.rank();
  for (int rank = 0; rank < ep.size(); ++rank) counts.arriving.insert(counts.arriving.end(), first, first + own);
  return counts;
}

/// Returns the assumption of WorstRouting: every token of every rank has as many experts of this rank as it can.
Counts worst_counts(const ExpertRows& rows, const Group& ep) {
  const auto num_experts = static_cast<int64_t>(rows.starts.size() - 1), own = num_experts / ep.size();
  const int64_t tokens = rows.rows.size(0), chosen = std::min(rows.num_slots(), own);
  const auto first = static_cast<size_t>(ep.rank() * own);
  Counts counts{Numbers(static_cast<size_t>(num_experts), 0), {}};
  for (int64_t i = 0; i < chosen; ++i) counts.leaving[first + static_cast<size_t>(i)] = tokens;
  counts.leaving[(first + static_cast<size_t>(own)) % counts.leaving.size()] += tokens * (rows.num_slots() - chosen);
  for (int rank = 0; rank < ep.size(); ++rank) {
    for (int64_t i = 0; i < own; ++i) counts.arriving.push_back(i < chosen ? tokens : 0);
  }
  return counts;
}

Dispatch::Piece piece_of(const Range& experts, int64_t first_row, const Counts& counts, int64_t num_ranks,
                         const at::Tensor& like) {
  const int64_t own = static_cast<int64_t>(counts.arriving.size()) / num_ranks;
  Dispatch::Piece piece;
  piece.experts = experts;
  Numbers of_piece, of_expert(static_cast<size_t>(experts.numel), 0);
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    piece.sent.push_back(0);
    piece.received.push_back(0);
    for (int64_t i = 0; i < experts.numel; ++i) {
      const auto at = static_cast<size_t>(rank * own + experts.offset + i);
      piece.sent.back() += counts.leaving[at];
      piece.received.back() += counts.arriving[at];
      of_piece.push_back(counts.arriving[at]);
      of_expert[static_cast<size_t>(i)] += counts.arriving[at];
    }
  }
  piece.rows = {first_row, sum(piece.sent)};
  piece.order = order_of(of_piece, num_ranks, experts.numel, like);
  piece.starts = {0};
  for (const int64_t count : of_expert) piece.starts.push_back(piece.starts.back() + count);
  return piece;
}

}  // namespace

int64_t Dispatch::num_received() const {
  int64_t all = 0;
  for (const Piece& piece : pieces) all += piece.starts.back();
  return all;
}

WorstRouting::WorstRouting() : before_(std::exchange(routes_worst, true)) {}

WorstRouting::~WorstRouting() {
  routes_worst = before_;
}

PendingDispatch::PendingDispatch(const at::Tensor& choices, int64_t num_experts, const Group& ep) : ep_(ep) {
  if (num_experts % ep.size() != 0) {
    throw std::invalid_argument(std::to_string(num_experts) +
                                " experts cannot be divided evenly over ep=" + std::to_string(ep.size()));
  }
  const Numbers experts = order_of_travel(num_experts, ep.size());
  rows_ = sort_by_expert(in_order_of_travel(choices, experts), num_experts);
  const auto options = choices.is_meta() ? choices.options() : at::TensorOptions(at::kLong);
  sent_ = at::empty({num_experts}, options);
  arriving_ = at::empty_like(sent_);
  if (!choices.is_meta()) {
    for_groups(rows_.starts, [&](int64_t nth, int64_t, int64_t count) {
      sent_.data_ptr<int64_t>()[experts[static_cast<size_t>(nth)]] = count;
    });
  }
  work_ = ep_.with_purpose("ep.counts").all_to_all(arriving_, sent_);
}

Dispatch PendingDispatch::wait() const {
  work_.wait();
  const auto values = [](const at::Tensor& of) {
    return Numbers(of.const_data_ptr<int64_t>(), of.const_data_ptr<int64_t>() + of.numel());
  };
  Counts counts;
  if (arriving_.is_meta()) {
    counts = routes_worst ? worst_counts(rows_, ep_) : balanced_counts(rows_, ep_);
  } else {
    counts = {values(sent_), values(arriving_)};
  }
  Dispatch dispatch{ep_, rows_, {}};
  int64_t first_row = 0;
  for (const Range& experts : pieces_of(static_cast<int64_t>(counts.arriving.size()) / ep_.size())) {
    dispatch.pieces.push_back(piece_of(experts, first_row, counts, ep_.size(), rows_.tokens));
    first_row += dispatch.pieces.back().rows.numel;
  }
  return dispatch;
}

TravellingRows start_sending(const at::Tensor& x, const Dispatch& dispatch, const Dispatch::Piece& piece,
                             const char* purpose) {
  TravellingRows way{empty_rows(x, piece.starts.back()), {}};
  way.work = dispatch.ep.with_purpose(purpose).all_to_all(way.rows, piece.received, x.contiguous(), piece.sent);
  return way;
}

at::Tensor arrived(const TravellingRows& rows, const Dispatch::Piece& piece) {
  rows.work.wait();
  return piece.order.defined() ? rows_at(rows.rows, piece.order) : rows.rows;
}

Work start_returning(const at::Tensor& y, at::Tensor into, const Dispatch& dispatch, const Dispatch::Piece& piece,
                     const char* purpose) {
  at::Tensor leaving = y.contiguous();
  if (piece.order.defined()) {
    leaving = at::empty_like(leaving);
    leaving.index_copy_(0, piece.order, y);
  }
  return dispatch.ep.with_purpose(purpose).all_to_all(into, piece.sent, leaving, piece.received);
}

}  // namespace meshtrain

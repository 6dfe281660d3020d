#include "expert_parallel/dispatch.h"

#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "expert_parallel/row_arithmetic.h"
#include "mesh/device/aten.h"
#include "mesh/device/device_transfer.h"
#include "tensor_parallel/products/leaf_gradient.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct DispatchHolder : torch::CustomClassHolder {
  DispatchHolder(Dispatch made, std::string counted_as) : dispatch(std::move(made)), purpose(std::move(counted_as)) {}
  Dispatch dispatch;
  std::string purpose;
};

using HolderPointer = c10::intrusive_ptr<DispatchHolder>;

int64_t sum(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.at(0) = rows;
  return at::empty(shape, like.options());
}

/// The rows' way to the experts: the rows of this rank in its order -> those of its experts.
at::Tensor there(const at::Tensor& x, const DispatchHolder& way) {
  const Dispatch& dispatch = way.dispatch;
  at::Tensor arrived = empty_rows(x, sum(dispatch.received));
  dispatch.ep.with_purpose(way.purpose).all_to_all(arrived, dispatch.received, x.contiguous(), dispatch.sent).wait();
  return dispatch.order.defined() ? rows_at(arrived, dispatch.order) : arrived;
}

/// The way back.
at::Tensor back(const at::Tensor& y, const DispatchHolder& way) {
  const Dispatch& dispatch = way.dispatch;
  at::Tensor leaving = y.contiguous();
  if (dispatch.order.defined()) {
    leaving = at::empty_like(leaving);
    leaving.index_copy_(0, dispatch.order, y);
  }
  at::Tensor returned = empty_rows(y, sum(dispatch.sent));
  dispatch.ep.with_purpose(way.purpose).all_to_all(returned, dispatch.sent, leaving, dispatch.received).wait();
  return returned;
}

/// Rows on their way to the experts, or back. The gradient goes the other way.
struct Exchange : torch::autograd::Function<Exchange> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const HolderPointer& way, bool to_experts) {
    ctx->saved_data["way"] = c10::IValue::make_capsule(way);
    ctx->saved_data["to_experts"] = to_experts;
    return to_experts ? there(rows, *way) : back(rows, *way);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("the exchange of experts' rows");
    const auto way = c10::static_intrusive_pointer_cast<DispatchHolder>(ctx->saved_data["way"].toCapsule());
    const bool to_experts = ctx->saved_data["to_experts"].toBool();
    return {to_experts ? back(grads[0], *way) : there(grads[0], *way), at::Tensor(), at::Tensor()};
  }
};

/// Returns the numbers of rows that go to the experts of each rank: [ep][E/ep].
std::vector<int64_t> counts_of(const ExpertRows& rows) {
  std::vector<int64_t> counts;
  for_groups(rows.starts, [&](int64_t, int64_t, int64_t count) { counts.push_back(count); });
  return counts;
}

/// Returns the numbers of rows that each rank sends to each expert of this rank, [ep][E/ep], from those of this rank.
std::vector<int64_t> exchanged(const std::vector<int64_t>& counts, const ExpertRows& rows, const Group& ep) {
  const size_t own = counts.size() / static_cast<size_t>(ep.size());
  if (rows.tokens.is_meta()) {
    std::vector<int64_t> arriving;
    const auto first = counts.begin() + static_cast<int64_t>(own) * ep.rank();
    for (int rank = 0; rank < ep.size(); ++rank) arriving.insert(arriving.end(), first, first + own);
    at::Tensor numbers = at::empty({static_cast<int64_t>(counts.size())}, rows.tokens.options());
    ep.with_purpose("ep.counts").all_to_all(numbers, at::empty_like(numbers)).wait();
    return arriving;
  }
  at::Tensor arriving = at::empty({static_cast<int64_t>(counts.size())}, at::kLong);
  ep.with_purpose("ep.counts").all_to_all(arriving, at::tensor(counts, at::kLong)).wait();
  const int64_t* const numbers = arriving.const_data_ptr<int64_t>();
  return {numbers, numbers + arriving.numel()};
}

/// Returns where row r of the experts is among the rows that arrive by rank, then by expert; undefined for one expert.
at::Tensor order_of(const std::vector<int64_t>& arriving, int64_t num_ranks, int64_t num_own, const at::Tensor& like) {
  if (num_own == 1 || num_ranks == 1) return {};
  std::vector<int64_t> first(arriving.size());
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

}  // namespace

Dispatch plan_dispatch(const ExpertRows& rows, const Group& ep) {
  const std::vector<int64_t> counts = counts_of(rows);
  const auto num_experts = static_cast<int64_t>(counts.size());
  if (num_experts % ep.size() != 0) {
    throw std::invalid_argument(std::to_string(num_experts) + " experts on " + std::to_string(ep.size()) +
                                " ranks of ep, which do not divide them");
  }
  const int64_t own = num_experts / ep.size();
  const std::vector<int64_t> arriving = exchanged(counts, rows, ep);
  Dispatch dispatch;
  dispatch.ep = ep;
  dispatch.order = order_of(arriving, ep.size(), own, rows.tokens);
  std::vector<int64_t> of_expert(static_cast<size_t>(own), 0);
  for (int64_t rank = 0; rank < ep.size(); ++rank) {
    dispatch.sent.push_back(rows.starts[static_cast<size_t>((rank + 1) * own)] -
                            rows.starts[static_cast<size_t>(rank * own)]);
    dispatch.received.push_back(0);
    for (int64_t expert = 0; expert < own; ++expert) {
      const int64_t count = arriving[static_cast<size_t>(rank * own + expert)];
      dispatch.received.back() += count;
      of_expert[static_cast<size_t>(expert)] += count;
    }
  }
  dispatch.starts = {0};
  for (const int64_t count : of_expert) dispatch.starts.push_back(dispatch.starts.back() + count);
  return dispatch;
}

at::Tensor send_to_experts(const at::Tensor& x, const Dispatch& dispatch, const char* purpose) {
  return Exchange::apply(x, c10::make_intrusive<DispatchHolder>(dispatch, purpose), /*to_experts=*/true);
}

at::Tensor return_from_experts(const at::Tensor& y, const Dispatch& dispatch, const char* purpose) {
  return Exchange::apply(y, c10::make_intrusive<DispatchHolder>(dispatch, purpose), /*to_experts=*/false);
}

}  // namespace meshtrain

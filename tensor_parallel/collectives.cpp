#include "tensor_parallel/collectives.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>
#include <string>

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Exchange { None, AllReduce, GatherRows, ScatterRows };

at::Tensor run(Exchange exchange, const at::Tensor& x, const Group& group) {
  switch (exchange) {
    case Exchange::None:
      return x;
    case Exchange::AllReduce: {
      at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
      group.all_reduce(sum).wait();
      return sum;
    }
    case Exchange::GatherRows:
      return start_gather_rows(x, group).wait();
    case Exchange::ScatterRows:
      return start_scatter_rows(x, group).wait();
  }
  return x;
}

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(Group held) : group(std::move(held)) {}
  Group group;
};

struct ConjugatePair : torch::autograd::Function<ConjugatePair> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Group& group, Exchange forward_exchange,
                            Exchange backward_exchange) {
    ctx->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    ctx->saved_data["backward"] = static_cast<int64_t>(backward_exchange);
    return run(forward_exchange, x, group);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a collective over a group");
    const auto holder = c10::static_intrusive_pointer_cast<GroupHolder>(ctx->saved_data["group"].toCapsule());
    const auto exchange = static_cast<Exchange>(ctx->saved_data["backward"].toInt());
    return {run(exchange, grads[0], holder->group), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor apply(const at::Tensor& x, const Group& group, Exchange forward, Exchange backward) {
  return group.size() == 1 ? x : ConjugatePair::apply(x, group, forward, backward);
}

at::Tensor empty_rows(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.at(0) = rows;
  return at::empty(shape, x.options());
}

}  // namespace

at::Tensor copy_to_group(const at::Tensor& x, const Group& group) {
  return apply(x, group, Exchange::None, Exchange::AllReduce);
}

at::Tensor reduce_from_group(const at::Tensor& x, const Group& group) {
  return apply(x, group, Exchange::AllReduce, Exchange::None);
}

at::Tensor gather_rows(const at::Tensor& x, const Group& group) {
  return apply(x, group, Exchange::GatherRows, Exchange::ScatterRows);
}

at::Tensor scatter_rows(const at::Tensor& x, const Group& group) {
  return apply(x, group, Exchange::ScatterRows, Exchange::GatherRows);
}

Pending start_gather_rows(const at::Tensor& x, const Group& group) {
  if (group.size() == 1) return {x, {}};
  Pending rows{empty_rows(x, x.size(0) * group.size()), {}};
  rows.work = group.all_gather(rows.tensor, x.contiguous());
  return rows;
}

Pending start_scatter_rows(const at::Tensor& x, const Group& group) {
  if (group.size() == 1) return {x, {}};
  Pending rows{empty_rows(x, x.size(0) / group.size()), {}};
  rows.work = group.reduce_scatter(rows.tensor, x.contiguous());
  return rows;
}

void require_first_order(const char* operation) {
  if (c10::GradMode::is_enabled()) {
    throw std::logic_error(std::string(operation) + " can be differentiated once only, without create_graph");
  }
}

}  // namespace meshtrain

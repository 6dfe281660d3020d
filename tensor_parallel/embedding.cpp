#include "tensor_parallel/embedding.h"

#include <ATen/TensorIndexing.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mesh/device/aten.h"
#include "tensor_parallel/collectives.h"
#include "tensor_parallel/operators/embedding_gradient.h"
#include "tensor_parallel/products/leaf_gradient.h"
#include "tensor_parallel/products/matrix_product.h"
#include "tensor_parallel/vocabulary_shard.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Table : torch::CustomClassHolder {
  Table(const Parameter& rows, const std::vector<Adapter>& adapter, std::optional<int64_t> frozen_row,
        TensorParallel parallel)
      : weight(rows.tensor),
        first(rows.box.start[0]),
        count(rows.box.size[0]),
        frozen(frozen_row),
        tp(std::move(parallel)) {
    tp.group = tp.group.with_purpose("tp.embedding");
    if (adapter.empty()) return;
    a = adapter.front().a.tensor;
    b = adapter.front().b.tensor;
    scale = adapter.front().scale;
  }

  bool has_adapter() const { return a.defined(); }

  /// Returns the rows of `ids` in this rank's part; `absent` is undefined when this rank has all of them.
  ShardIds find(const at::Tensor& ids) const {
    return tp.group.size() == 1 ? ShardIds{ids, {}} : shard_ids(ids, first, count);
  }

  /// Returns those that give a gradient: tokens of the frozen row count as absent.
  ShardIds find_trained(const at::Tensor& ids) const {
    ShardIds here = find(ids);
    if (!frozen) return here;
    const at::Tensor without = ids.eq(*frozen);
    here.absent = here.absent.defined() ? here.absent.bitwise_or(without) : without;
    return here;
  }

  at::Tensor weight;
  at::Tensor a, b;  // undefined: no adapter
  double scale = 1;
  int64_t first;
  int64_t count;
  std::optional<int64_t> frozen;
  TensorParallel tp;
};

using TablePointer = c10::intrusive_ptr<Table>;

/// Returns the rows of `table` for ids, [T, columns]; zeros for ids of other ranks.
at::Tensor look_up(const at::Tensor& table, const ShardIds& ids) {
  const at::Tensor rows = table.detach().index({ids.local});
  return ids.absent.defined() ? rows.masked_fill_(ids.absent.unsqueeze(1), 0) : rows;
}

/// Adds the gradient of the rows of `table` to its buffer. Returns what autograd must receive.
at::Tensor add_gradient_of_rows(const at::Tensor& table, const ShardIds& ids, const at::Tensor& dy) {
  const at::Tensor in_place = gradient_in_place(table);
  const at::Tensor gradient = in_place.defined() ? in_place : at::zeros_like(table);
  add_embedding_gradient(gradient, ids, dy);
  return in_place.defined() ? at::Tensor() : gradient;
}

/// Adds dy^T hidden, the gradient of a B, to its buffer. Returns what autograd must receive.
at::Tensor add_gradient_of_b(const at::Tensor& b, const at::Tensor& dy, const at::Tensor& hidden) {
  const GradientTarget target = gradient_target(b);
  if (!target.buffer.defined()) return product(dy.t(), hidden.t());
  add_product(target.buffer, dy, hidden, target.unwritten);
  return {};
}

struct Lookup : torch::autograd::Function<Lookup> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ids, const at::Tensor&,
                            const std::optional<at::Tensor>& a, const std::optional<at::Tensor>& b,
                            const TablePointer& table) {
    ctx->saved_data["table"] = c10::IValue::make_capsule(table);
    const ShardIds here = table->find(ids);
    PendingTensor rows{look_up(table->weight, here), {}};
    variable_list saved = {ids};
    if (table->has_adapter()) {
      const at::Tensor hidden = look_up(*a, here).mul_(table->scale);
      rows.tensor.add_(product(hidden, *b));
      if (b->requires_grad()) saved.push_back(hidden);
    }
    ctx->save_for_backward(saved);
    if (table->tp.group.size() == 1) return rows.tensor;

    if (table->tp.splits_rows()) return start_scatter_rows(rows.tensor, table->tp.group).wait();
    table->tp.group.all_reduce(rows.tensor).wait();
    return rows.tensor;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("an embedding");
    const auto table = c10::static_intrusive_pointer_cast<Table>(ctx->saved_data["table"].toCapsule());
    PendingTensor gathered{grads[0], {}};
    if (table->tp.splits_rows()) gathered = start_gather_rows(gathered.tensor, table->tp.group);
    const variable_list saved = ctx->get_saved_variables();
    const ShardIds here = table->find_trained(saved[0]);
    const at::Tensor dy = gathered.wait();

    variable_list gradients(5);
    if (ctx->needs_input_grad(1)) gradients[1] = add_gradient_of_rows(table->weight, here, dy);
    if (!table->has_adapter()) return gradients;
    if (ctx->needs_input_grad(2)) {
      const at::Tensor hidden_gradient = product(dy, table->b.detach().t()).mul_(table->scale);
      gradients[2] = add_gradient_of_rows(table->a, here, hidden_gradient);
    }
    if (ctx->needs_input_grad(3)) gradients[3] = add_gradient_of_b(table->b, dy, saved[1]);
    return gradients;
  }
};

}  // namespace

VocabParallelEmbedding::VocabParallelEmbedding(const TensorParallel& tp, const std::string& name, int64_t vocab_size,
                                               int64_t hidden_size, Initializer initializer,
                                               const at::TensorOptions& options,
                                               const std::optional<AdapterOptions>& adapter)
    : tp_(tp),
      weight_(sharded_parameter(name + ".weight", {vocab_size, hidden_size}, 0, tp.group, initializer, options)) {
  weight_.of_tokens = true;
  if (adapter) adapter_.push_back(embedding_adapter(tp, name, vocab_size, hidden_size, *adapter, options));
}

std::vector<Parameter*> VocabParallelEmbedding::parameters() {
  std::vector<Parameter*> all = {&weight_};
  for (Adapter& adapter : adapter_) all.insert(all.end(), {&adapter.a, &adapter.b});
  return all;
}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& ids) const {
  const auto table = c10::make_intrusive<Table>(weight_, adapter_, frozen_row_, tp_);
  std::optional<at::Tensor> a, b;
  if (table->has_adapter()) a = table->a, b = table->b;
  return Lookup::apply(ids, weight_.tensor, a, b, table);
}

}  // namespace meshtrain

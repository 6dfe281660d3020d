#include "tensor_parallel/embedding.h"

#include <ATen/TensorIndexing.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mesh/device/aten.h"
#include "tensor_parallel/collectives.h"
#include "tensor_parallel/operators/embedding_gradient.h"
#include "tensor_parallel/products/leaf_gradient.h"
#include "tensor_parallel/vocabulary_shard.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Table : torch::CustomClassHolder {
  Table(const Parameter& rows, std::optional<int64_t> frozen_row, TensorParallel parallel)
      : weight(rows.tensor),
        first(rows.box.start[0]),
        count(rows.box.size[0]),
        frozen(frozen_row),
        tp(std::move(parallel)) {
    tp.group = tp.group.with_purpose("tp.embedding");
  }

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
  int64_t first;
  int64_t count;
  std::optional<int64_t> frozen;
  TensorParallel tp;
};

using TablePointer = c10::intrusive_ptr<Table>;

struct Lookup : torch::autograd::Function<Lookup> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ids, const at::Tensor& weight,
                            const TablePointer& table) {
    ctx->save_for_backward({ids});
    ctx->saved_data["table"] = c10::IValue::make_capsule(table);
    const ShardIds here = table->find(ids);
    PendingTensor rows{weight.index({here.local}), {}};
    if (table->tp.group.size() == 1) return rows.tensor;

    rows.tensor.masked_fill_(here.absent.unsqueeze(1), 0);
    if (table->tp.splits_rows()) return start_scatter_rows(rows.tensor, table->tp.group).wait();
    table->tp.group.all_reduce(rows.tensor).wait();
    return rows.tensor;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("an embedding");
    const auto table = c10::static_intrusive_pointer_cast<Table>(ctx->saved_data["table"].toCapsule());
    PendingTensor dy{grads[0], {}};
    if (table->tp.splits_rows()) dy = start_gather_rows(dy.tensor, table->tp.group);
    const ShardIds here = table->find_trained(ctx->get_saved_variables()[0]);

    const at::Tensor in_place = gradient_in_place(table->weight);
    const at::Tensor gradient = in_place.defined() ? in_place : at::zeros_like(table->weight);
    add_embedding_gradient(gradient, here, dy.wait());
    return {at::Tensor(), in_place.defined() ? at::Tensor() : gradient, at::Tensor()};
  }
};

}  // namespace

VocabParallelEmbedding::VocabParallelEmbedding(const TensorParallel& tp, const std::string& name, int64_t vocab_size,
                                               int64_t hidden_size, Initializer initializer,
                                               const at::TensorOptions& options)
    : tp_(tp),
      weight_(sharded_parameter(name + ".weight", {vocab_size, hidden_size}, 0, tp.group, initializer, options)) {
  weight_.of_tokens = true;
}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& ids) const {
  return Lookup::apply(ids, weight_.tensor, c10::make_intrusive<Table>(weight_, frozen_row_, tp_));
}

}  // namespace meshtrain

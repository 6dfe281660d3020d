#include "tensor_parallel/linear_function.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "mesh/device/aten.h"
#include "tensor_parallel/collectives.h"
#include "tensor_parallel/products/leaf_gradient.h"
#include "tensor_parallel/products/matrix_product.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The inputs of backward besides x. Parameters are here and not among the saved variables: hooks on saved variables
/// would copy them, and a refilled storage would count as an error.
struct Layer : torch::CustomClassHolder {
  Layer(std::vector<at::Tensor> all_weights, std::vector<at::Tensor> all_biases, TensorParallel parallel,
        LayerInput::Again input_again)
      : weights(std::move(all_weights)),
        biases(std::move(all_biases)),
        tp(std::move(parallel)),
        again(std::move(input_again)) {
    tp.group = tp.group.with_purpose("tp.linear");
  }

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all = weights;
    all.insert(all.end(), biases.begin(), biases.end());
    return all;
  }

  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  TensorParallel tp;
  LayerInput::Again again;
};

using LayerPointer = c10::intrusive_ptr<Layer>;

at::Tensor forward_product(const at::Tensor& x, const Layer& layer, bool with_bias) {
  at::Tensor y = product(x, join(layer.weights));
  return with_bias ? y.add_(join(layer.biases)) : y;
}

/// Stores, in the results of backward, the gradients of a run that autograd must receive.
void hand_back(const LeafRun& run, const std::vector<at::Tensor>& leaves, at::Tensor gradient, at::Tensor* results) {
  if (run.end == run.begin + 1) {
    results[run.begin] = std::move(gradient);
    return;
  }
  int64_t row = 0;
  for (size_t i = run.begin; i < run.end; ++i) {
    // Clone: autograd keeps a gradient that nobody else holds, and a slice of a joined gradient would keep all of it
    // alive.
    results[i] = gradient.narrow(0, row, leaves[i].size(0)).clone();
    row += leaves[i].size(0);
  }
}

/// The gradients of a layer, in the order of the Function's arguments: x, weights, biases, the layer, the tensors kept
/// for x.
class Gradients {
 public:
  Gradients(AutogradContext* ctx, const Layer& layer)
      : layer_(layer), list_(3 + layer.weights.size() + layer.biases.size()), needs_input_(ctx->needs_input_grad(0)) {
    for (size_t i = 0; i < layer.weights.size(); ++i) needed_weights_.push_back(ctx->needs_input_grad(1 + i));
    for (size_t i = 0; i < layer.biases.size(); ++i) {
      needed_biases_.push_back(ctx->needs_input_grad(1 + layer.weights.size() + i));
    }
  }

  bool needs_input() const { return needs_input_; }
  bool needs_weights() const { return std::count(needed_weights_.begin(), needed_weights_.end(), true) > 0; }

  void of_input(at::Tensor gradient) { list_[0] = std::move(gradient); }

  /// Computes the gradients of the weights from dy [T, sum of F_i] and x [T, in].
  void of_weights(const at::Tensor& dy, const at::Tensor& x) {
    for (const LeafRun& run : leaf_runs(layer_.weights, needed_weights_)) {
      const at::Tensor columns = dy.narrow(1, run.first_row, run.rows);
      if (run.target.buffer.defined()) {
        add_product(run.target.buffer, columns, x, run.target.unwritten);
      } else {
        hand_back(run, layer_.weights, product(columns.t(), x.t()), &list_[1]);
      }
    }
  }

  void of_biases(const at::Tensor& dy) {
    for (const LeafRun& run : leaf_runs(layer_.biases, needed_biases_)) {
      const at::Tensor columns = dy.narrow(1, run.first_row, run.rows);
      if (run.target.buffer.defined()) {
        const at::Tensor& buffer = run.target.buffer;
        const at::Tensor sum = columns.sum(0, /*keepdim=*/false, buffer.scalar_type());
        run.target.unwritten ? buffer.copy_(sum) : buffer.add_(sum);
      } else {
        hand_back(run, layer_.biases, columns.sum(0), &list_[1 + layer_.weights.size()]);
      }
    }
  }

  variable_list list() { return std::move(list_); }

 private:
  const Layer& layer_;
  variable_list list_;
  bool needs_input_;
  std::vector<bool> needed_weights_;
  std::vector<bool> needed_biases_;
};

/// Saves the tensors kept for x when a weight needs them.
void save(AutogradContext* ctx, const std::vector<at::Tensor>& kept, const LayerPointer& layer) {
  const auto trainable = [](const at::Tensor& weight) { return weight.requires_grad(); };
  if (std::any_of(layer->weights.begin(), layer->weights.end(), trainable)) ctx->save_for_backward(kept);
  ctx->saved_data["layer"] = c10::IValue::make_capsule(layer);
}

LayerPointer saved_layer(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Layer>(ctx->saved_data["layer"].toCapsule());
}

at::Tensor input_again(AutogradContext* ctx, const Layer& layer) {
  const variable_list kept = ctx->get_saved_variables();
  return layer.again ? layer.again(kept) : kept[0];
}

struct ColumnLinear : torch::autograd::Function<ColumnLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList, const LayerPointer& layer,
                            const std::vector<at::Tensor>* kept) {
    save(ctx, *kept, layer);
    const at::Tensor rows = layer->tp.splits_rows() ? start_gather_rows(x, layer->tp.group).wait() : x;
    return forward_product(rows, *layer, /*with_bias=*/!layer->biases.empty());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a column-parallel linear layer");
    const LayerPointer layer = saved_layer(ctx);
    const TensorParallel& tp = layer->tp;
    const at::Tensor dy = grads[0].contiguous();
    Gradients gradients(ctx, *layer);

    PendingTensor x;
    if (gradients.needs_weights()) {
      x.tensor = input_again(ctx, *layer);
      if (tp.splits_rows()) x = start_gather_rows(x.tensor, tp.group);
    }
    PendingTensor dx;
    if (gradients.needs_input()) {
      dx.tensor = product(dy, join(layer->weights).t());
      if (tp.splits_rows()) {
        dx = start_scatter_rows(dx.tensor, tp.group);
      } else {
        dx.work = tp.group.all_reduce(dx.tensor);
      }
    }
    gradients.of_biases(dy);
    if (gradients.needs_weights()) gradients.of_weights(dy, x.wait());
    gradients.of_input(dx.wait());
    return gradients.list();
  }
};

struct RowLinear : torch::autograd::Function<RowLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList, const LayerPointer& layer,
                            const std::vector<at::Tensor>* kept) {
    save(ctx, *kept, layer);
    const TensorParallel& tp = layer->tp;
    const bool has_bias = !layer->biases.empty();
    if (tp.group.size() == 1) return forward_product(x, *layer, has_bias);

    PendingTensor y{forward_product(x, *layer, /*with_bias=*/false), {}};
    if (tp.splits_rows()) {
      y = start_scatter_rows(y.tensor, tp.group);
    } else {
      y.work = tp.group.all_reduce(y.tensor);
    }
    y.work.wait();
    return has_bias ? y.tensor.add_(layer->biases[0]) : y.tensor;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a row-parallel linear layer");
    const LayerPointer layer = saved_layer(ctx);
    const TensorParallel& tp = layer->tp;
    Gradients gradients(ctx, *layer);

    const at::Tensor own_rows = grads[0].contiguous();
    PendingTensor dy{own_rows, {}};
    const bool needs_all_rows = gradients.needs_input() || gradients.needs_weights();
    if (tp.splits_rows() && needs_all_rows) dy = start_gather_rows(own_rows, tp.group);
    gradients.of_biases(own_rows);
    dy.work.wait();
    if (gradients.needs_input()) gradients.of_input(product(dy.tensor, layer->weights[0].t()));
    if (gradients.needs_weights()) gradients.of_weights(dy.tensor, input_again(ctx, *layer));
    return gradients.list();
  }
};

template <class Function>
at::Tensor apply(const LayerInput& x, const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& biases,
                 const TensorParallel& tp) {
  const auto layer = c10::make_intrusive<Layer>(weights, biases, tp, x.again);
  const std::vector<at::Tensor> leaves = layer->leaves();
  at::TensorList list = leaves;
  return Function::apply(x.value, list, layer, &x.kept);
}

}  // namespace

at::Tensor column_parallel_linear(const LayerInput& x, const std::vector<at::Tensor>& weights,
                                  const std::vector<at::Tensor>& biases, const TensorParallel& tp) {
  return apply<ColumnLinear>(x, weights, biases, tp);
}

at::Tensor row_parallel_linear(const LayerInput& x, const at::Tensor& weight, const at::Tensor& bias,
                               const TensorParallel& tp) {
  const std::vector<at::Tensor> biases = bias.defined() ? std::vector{bias} : std::vector<at::Tensor>{};
  return apply<RowLinear>(x, {weight}, biases, tp);
}

}  // namespace meshtrain

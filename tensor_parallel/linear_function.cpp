#include "tensor_parallel/linear_function.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>

#include "mesh/device/aten.h"
#include "tensor_parallel/collectives.h"
#include "tensor_parallel/products/deferred.h"
#include "tensor_parallel/products/leaf_gradient.h"
#include "tensor_parallel/products/matrix_product.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The inputs of backward besides x. Parameters are here and not among the saved variables: hooks on saved variables
/// would copy them, and a refilled storage would count as an error.
struct Layer : torch::CustomClassHolder {
  Layer(std::vector<at::Tensor> all_weights, std::vector<at::Tensor> all_biases, AdapterTerms adapter_terms,
        TensorParallel parallel, LayerInput::Again input_again)
      : weights(std::move(all_weights)),
        biases(std::move(all_biases)),
        adapters(std::move(adapter_terms)),
        tp(std::move(parallel)),
        again(std::move(input_again)) {
    tp.group = tp.group.with_purpose("tp.linear");
  }

  /// Returns all leaves: weights, biases, A's, B's.
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all = weights;
    for (const auto* others : {&biases, &adapters.a, &adapters.b})
      all.insert(all.end(), others->begin(), others->end());
    return all;
  }

  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  AdapterTerms adapters;
  TensorParallel tp;
  LayerInput::Again again;
};

using LayerPointer = c10::intrusive_ptr<Layer>;

at::Tensor forward_product(const at::Tensor& x, const Layer& layer, bool with_bias) {
  at::Tensor y = product(x, join(layer.weights));
  return with_bias ? y.add_(join(layer.biases)) : y;
}

/// The gradients of leaves of one kind in a backward: weights, biases, or the factors of adapters.
class LeafGradients {
 public:
  /// `first`: the index of the first of `leaves` among the arguments of the Function.
  LeafGradients(AutogradContext* ctx, std::vector<at::Tensor> leaves, size_t first)
      : leaves_(std::move(leaves)), first_(first) {
    for (size_t i = 0; i < leaves_.size(); ++i) needed_.push_back(ctx->needs_input_grad(first + i));
  }

  bool needed() const { return std::count(needed_.begin(), needed_.end(), true) > 0; }
  bool needed(size_t i) const { return needed_[i]; }
  /// Returns the leaves whose gradients are needed.
  std::vector<at::Tensor> needed_leaves() const {
    std::vector<at::Tensor> all;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      if (needed_[i]) all.push_back(leaves_[i]);
    }
    return all;
  }

  /// Computes dy^T x: dy [T, rows of all leaves], x [T, columns]. Stores in `results` what autograd must receive.
  void add_products(const at::Tensor& dy, const at::Tensor& x, variable_list& results) const {
    for (const LeafRun& run : leaf_runs(leaves_, needed_)) {
      const at::Tensor columns = dy.narrow(1, run.first_row, run.rows);
      if (run.target.buffer.defined()) {
        add_product(run.target.buffer, columns, x, run.target.unwritten);
      } else {
        hand_back(run, product(columns.t(), x.t()), results);
      }
    }
  }

  /// Computes the sums of dy [T, elements of all leaves] over T. Stores in `results` what autograd must receive.
  void add_sums(const at::Tensor& dy, variable_list& results) const {
    for (const LeafRun& run : leaf_runs(leaves_, needed_)) {
      const at::Tensor columns = dy.narrow(1, run.first_row, run.rows);
      if (run.target.buffer.defined()) {
        const at::Tensor& buffer = run.target.buffer;
        const at::Tensor sum = columns.sum(0, /*keepdim=*/false, buffer.scalar_type());
        run.target.unwritten ? buffer.copy_(sum) : buffer.add_(sum);
      } else {
        hand_back(run, columns.sum(0), results);
      }
    }
  }

 private:
  void hand_back(const LeafRun& run, at::Tensor gradient, variable_list& results) const {
    if (run.end == run.begin + 1) {
      results[first_ + run.begin] = std::move(gradient);
      return;
    }
    int64_t row = 0;
    for (size_t i = run.begin; i < run.end; ++i) {
      // Clone: autograd keeps a gradient that nobody else holds, and a slice of a joined gradient would keep all of it
      // alive.
      results[first_ + i] = gradient.narrow(0, row, leaves_[i].size(0)).clone();
      row += leaves_[i].size(0);
    }
  }

  std::vector<at::Tensor> leaves_;
  size_t first_;
  std::vector<bool> needed_;
};

/// The gradients of a layer, in the order of the Function's arguments: x, weights, biases, the factors A and B, the
/// layer, the tensors kept for x.
class Gradients {
 public:
  Gradients(AutogradContext* ctx, const Layer& layer)
      : adapters_(layer.adapters),
        list_(3 + layer.leaves().size()),
        needs_input_(ctx->needs_input_grad(0)),
        weights_(ctx, layer.weights, 1),
        biases_(ctx, layer.biases, 1 + layer.weights.size()),
        a_(ctx, layer.adapters.a, 1 + layer.weights.size() + layer.biases.size()) {
    const size_t first_b = 1 + layer.weights.size() + layer.biases.size() + layer.adapters.a.size();
    for (size_t i = 0; i < layer.adapters.b.size(); ++i) {
      b_.emplace_back(ctx, std::vector{layer.adapters.b[i]}, first_b + i);
    }
  }

  bool needs_input() const { return needs_input_; }
  /// Returns true when gradients need x.
  bool needs_x() const { return weights_.needed() || a_.needed(); }
  /// Returns true when the gradients of the weights are left for later. A layer whose adapters are trained computes all
  /// in its backward: its weights are frozen as a rule.
  bool defers_weights() const {
    const std::vector<at::Tensor> leaves = weights_.needed_leaves();
    return DeferringBackward::current() != nullptr && !leaves.empty() && !a_.needed() &&
           std::ranges::all_of(leaves, can_be_deferred);
  }
  bool needs_b() const {
    return std::any_of(b_.begin(), b_.end(), [](const LeafGradients& factor) { return factor.needed(); });
  }
  bool needs_dy() const { return needs_input() || needs_x() || needs_b(); }

  void of_input(at::Tensor gradient) { list_[0] = std::move(gradient); }

  /// Computes the gradients of the weights from dy [T, sum of F_i] and x [T, in].
  void of_weights(const at::Tensor& dy, const at::Tensor& x) { weights_.add_products(dy, x, list_); }
  /// Leaves the gradients of the weights for later, from dy and x as above. `cut_over`: the ranks over which the rows
  /// of x are cut, which gather them then; null: x is complete.
  void defer_weights(const at::Tensor& dy, const at::Tensor& x, const Group* cut_over = nullptr) const {
    // detach: the input would keep the graph of the layers before.
    const auto rows = std::make_shared<PendingTensor>(PendingTensor{x.detach(), {}});
    DeferredGradient gradient{weights_.needed_leaves(), {}, [weights = weights_, dy, rows] {
                                variable_list none;  // all gradients have buffers
                                weights.add_products(dy, rows->wait(), none);
                              }};
    if (cut_over != nullptr) {
      gradient.start = [rows, group = *cut_over] { *rows = start_gather_rows(rows->tensor, group); };
    }
    DeferringBackward::current()->add(std::move(gradient));
  }
  void of_biases(const at::Tensor& dy) { biases_.add_sums(dy, list_); }

  /// Computes the gradients of A from that of h and x [T, in].
  void of_a(const at::Tensor& hidden_gradient, const at::Tensor& x) {
    if (a_.needed()) a_.add_products(hidden_gradient, adapters_.dropped(x), list_);
  }
  /// Computes the gradients of B from dy and h, the hidden values of AdapterTerms.
  void of_b(const at::Tensor& dy, const at::Tensor& hidden) {
    int64_t first = 0;
    for (size_t i = 0; i < b_.size(); ++i) {
      const at::Tensor& factor = adapters_.b[i];
      const at::Tensor own = hidden.narrow(1, first, factor.size(1));
      b_[i].add_products(dy.narrow(1, adapters_.first_columns[i], factor.size(0)), own * adapters_.scales[i], list_);
      first += factor.size(1);
    }
  }

  variable_list list() { return std::move(list_); }

 private:
  const AdapterTerms& adapters_;
  variable_list list_;
  bool needs_input_;
  LeafGradients weights_, biases_, a_;
  std::vector<LeafGradients> b_;  // each alone: their numbers of columns may differ
};

bool any_trainable(const std::vector<at::Tensor>& leaves) {
  return std::any_of(leaves.begin(), leaves.end(), [](const at::Tensor& leaf) { return leaf.requires_grad(); });
}

/// Saves the tensors kept for x when a gradient needs x, and after them the hidden values of the adapters.
void save(AutogradContext* ctx, const std::vector<at::Tensor>& kept, const at::Tensor& hidden,
          const LayerPointer& layer) {
  variable_list saved;
  if (any_trainable(layer->weights) || any_trainable(layer->adapters.a)) saved = kept;
  if (any_trainable(layer->adapters.b)) saved.push_back(hidden);
  if (!saved.empty()) ctx->save_for_backward(saved);
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
    const at::Tensor rows = layer->tp.splits_rows() ? start_gather_rows(x, layer->tp.group).wait() : x;
    at::Tensor y = forward_product(rows, *layer, /*with_bias=*/!layer->biases.empty());
    save(ctx, *kept, layer->adapters.empty() ? at::Tensor() : layer->adapters.add_to(y, rows), layer);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a column-parallel linear layer");
    const LayerPointer layer = saved_layer(ctx);
    const TensorParallel& tp = layer->tp;
    const at::Tensor dy = grads[0].contiguous();
    Gradients gradients(ctx, *layer);
    const bool defers = gradients.defers_weights();

    PendingTensor x;
    if (gradients.needs_x()) {
      x.tensor = input_again(ctx, *layer);
      if (tp.splits_rows() && !defers) x = start_gather_rows(x.tensor, tp.group);
    }
    const at::Tensor hidden_gradient = layer->adapters.empty() ? at::Tensor() : layer->adapters.hidden_gradient(dy);
    PendingTensor dx;
    if (gradients.needs_input()) {
      dx.tensor = product(dy, join(layer->weights).t());
      if (!layer->adapters.empty()) layer->adapters.add_input_gradient(dx.tensor, hidden_gradient);
      if (tp.splits_rows()) {
        dx = start_scatter_rows(dx.tensor, tp.group);
      } else {
        dx.work = tp.group.all_reduce(dx.tensor);
      }
    }
    gradients.of_biases(dy);
    if (gradients.needs_b()) gradients.of_b(dy, ctx->get_saved_variables().back());
    if (defers) {
      gradients.defer_weights(dy, x.tensor, tp.splits_rows() ? &tp.group : nullptr);
    } else if (gradients.needs_x()) {
      const at::Tensor rows = x.wait();
      gradients.of_weights(dy, rows);
      gradients.of_a(hidden_gradient, rows);
    }
    gradients.of_input(dx.wait());
    return gradients.list();
  }
};

struct RowLinear : torch::autograd::Function<RowLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList, const LayerPointer& layer,
                            const std::vector<at::Tensor>* kept) {
    const TensorParallel& tp = layer->tp;
    const bool has_bias = !layer->biases.empty(), alone = tp.group.size() == 1;
    PendingTensor y{forward_product(x, *layer, has_bias && alone), {}};
    save(ctx, *kept, layer->adapters.empty() ? at::Tensor() : layer->adapters.add_to(y.tensor, x), layer);
    if (alone) return y.tensor;

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
    if (tp.splits_rows() && gradients.needs_dy()) dy = start_gather_rows(own_rows, tp.group);
    gradients.of_biases(own_rows);
    dy.work.wait();
    const at::Tensor hidden_gradient =
        layer->adapters.empty() ? at::Tensor() : layer->adapters.hidden_gradient(dy.tensor);
    if (gradients.needs_input()) {
      at::Tensor dx = product(dy.tensor, layer->weights[0].t());
      if (!layer->adapters.empty()) layer->adapters.add_input_gradient(dx, hidden_gradient);
      gradients.of_input(std::move(dx));
    }
    if (gradients.needs_b()) gradients.of_b(dy.tensor, ctx->get_saved_variables().back());
    if (gradients.needs_x()) {
      const at::Tensor x = input_again(ctx, *layer);
      if (gradients.defers_weights()) {
        gradients.defer_weights(dy.tensor, x);
      } else {
        gradients.of_weights(dy.tensor, x);
        gradients.of_a(hidden_gradient, x);
      }
    }
    return gradients.list();
  }
};

template <class Function>
at::Tensor apply(const LayerInput& x, const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& biases,
                 const TensorParallel& tp, const AdapterTerms& adapters) {
  const auto layer = c10::make_intrusive<Layer>(weights, biases, adapters, tp, x.again);
  const std::vector<at::Tensor> leaves = layer->leaves();
  at::TensorList list = leaves;
  return Function::apply(x.value, list, layer, &x.kept);
}

}  // namespace

at::Tensor column_parallel_linear(const LayerInput& x, const std::vector<at::Tensor>& weights,
                                  const std::vector<at::Tensor>& biases, const TensorParallel& tp,
                                  const AdapterTerms& adapters) {
  return apply<ColumnLinear>(x, weights, biases, tp, adapters);
}

at::Tensor row_parallel_linear(const LayerInput& x, const at::Tensor& weight, const at::Tensor& bias,
                               const TensorParallel& tp, const AdapterTerms& adapters) {
  const std::vector<at::Tensor> biases = bias.defined() ? std::vector{bias} : std::vector<at::Tensor>{};
  return apply<RowLinear>(x, {weight}, biases, tp, adapters);
}

}  // namespace meshtrain

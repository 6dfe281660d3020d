#include "runtime/training/model/feed_forward.h"

#include "runtime/training/model/families.h"
#include "runtime/training/model/operators/glu.h"

namespace meshtrain {

FeedForward::FeedForward(const std::string& name, const ModelShape& shape, int64_t features,
                         const Parallelism& parallelism, const at::TensorOptions& options)
    : gate_up_(
          parallelism.tensor, shape.hidden_size,
          {{name + ".gate_proj", features, adapter_of(shape.adapter, name + ".gate_proj", name, shape.hidden_size)},
           {name + ".up_proj", features, adapter_of(shape.adapter, name + ".up_proj", name, shape.hidden_size)}},
          shape.mlp_bias, {Initializer::Kind::Normal, shape.initializer_range}, options),
      down_(parallelism.tensor, name + ".down_proj", features, shape.hidden_size, shape.mlp_bias,
            {Initializer::Kind::Normal, shape.initializer_range}, options,
            adapter_of(shape.adapter, name + ".down_proj", name + ".down_proj", features)),
      activation_(family_of(shape).activation) {}

at::Tensor FeedForward::forward(const LayerInput& x, bool recompute, const at::Tensor& tokens) const {
  const at::Tensor gate_up = gate_up_.forward(x, tokens);
  return down_.forward(recompute ? recomputed_glu(gate_up, activation_) : LayerInput(glu(gate_up, activation_)),
                       tokens);
}

std::vector<Parameter*> FeedForward::parameters() {
  std::vector<Parameter*> all = gate_up_.parameters();
  for (Parameter* parameter : down_.parameters()) all.push_back(parameter);
  return all;
}

}  // namespace meshtrain

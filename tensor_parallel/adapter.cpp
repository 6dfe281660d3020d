#include "tensor_parallel/adapter.h"

namespace meshtrain {
namespace {

Adapter with_options(Parameter a, Parameter b, const AdapterOptions& options) {
  a.written_by_layer = true;
  b.written_by_layer = true;
  return {std::move(a), std::move(b), options.scale, options.dropout};
}

}  // namespace

Adapter column_parallel_adapter(const TensorParallel& tp, const std::string& layer, int64_t in_features,
                                int64_t out_features, const AdapterOptions& adapter, const at::TensorOptions& options) {
  Parameter a = full_parameter(layer + ".lora_A.weight", {adapter.rank, in_features}, adapter.initializer, options);
  a.partial_over = tp.group.name();
  return with_options(std::move(a),
                      sharded_parameter(layer + ".lora_B.weight", {out_features, adapter.rank}, 0, tp.group,
                                        adapter.initializer_of_b, options),
                      adapter);
}

Adapter row_parallel_adapter(const TensorParallel& tp, const std::string& layer, int64_t in_features,
                             int64_t out_features, const AdapterOptions& adapter, const at::TensorOptions& options) {
  Parameter b =
      full_parameter(layer + ".lora_B.weight", {out_features, adapter.rank}, adapter.initializer_of_b, options);
  b.partial_over = tp.group.name();
  return with_options(sharded_parameter(layer + ".lora_A.weight", {adapter.rank, in_features}, 1, tp.group,
                                        adapter.initializer, options),
                      std::move(b), adapter);
}

}  // namespace meshtrain

#include "tensor_parallel/adapter.h"

namespace meshtrain {
namespace {

Adapter with_options(Parameter a, Parameter b, const AdapterOptions& options) {
  a.written_by_layer = true;
  b.written_by_layer = true;
  return {std::move(a), std::move(b), options.scale, options.dropout};
}

/// Returns a B that every rank holds, each with the hidden values of its inputs.
Parameter complete_b(const TensorParallel& tp, const std::string& name, int64_t out_features,
                     const AdapterOptions& adapter, const at::TensorOptions& options) {
  Parameter b = full_parameter(name, {out_features, adapter.rank}, adapter.initializer_of_b, options);
  b.partial_over = tp.group.name();
  return b;
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
  return with_options(sharded_parameter(layer + ".lora_A.weight", {adapter.rank, in_features}, 1, tp.group,
                                        adapter.initializer, options),
                      complete_b(tp, layer + ".lora_B.weight", out_features, adapter, options), adapter);
}

Adapter embedding_adapter(const TensorParallel& tp, const std::string& embedding, int64_t vocab_size,
                          int64_t hidden_size, const AdapterOptions& adapter, const at::TensorOptions& options) {
  Adapter made = with_options(sharded_parameter(embedding + ".lora_embedding_A", {vocab_size, adapter.rank}, 0,
                                                tp.group, adapter.initializer, options),
                              complete_b(tp, embedding + ".lora_embedding_B", hidden_size, adapter, options), adapter);
  made.a.written_by_layer = false;  // lookups add
  made.a.of_tokens = true;
  return made;
}

AdapterTerms adapter_terms(const std::vector<Adapter>& adapters, const std::vector<int64_t>& first_columns,
                           const at::Tensor& tokens) {
  AdapterTerms terms;
  if (adapters.empty()) return terms;
  for (const Adapter& adapter : adapters) {
    terms.a.push_back(adapter.a.tensor);
    terms.b.push_back(adapter.b.tensor);
    terms.scales.push_back(adapter.scale);
  }
  terms.first_columns = first_columns;
  terms.dropout = adapters.front().dropout;
  terms.tokens = tokens;
  terms.first_feature = adapters.front().a.box.start[1];
  return terms;
}

}  // namespace meshtrain

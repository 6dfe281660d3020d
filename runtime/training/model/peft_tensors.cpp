#include "runtime/training/model/peft_tensors.h"

#include <algorithm>
#include <map>
#include <set>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/transformer.h"

namespace meshtrain {
namespace {

/// Returns the layer of a factor, "model.layers.0.mlp.up_proj.lora_A.weight".
std::string layer_of(const std::string& factor) {
  return factor.substr(0, factor.rfind(".lora_"));
}

bool is_a(const std::string& factor) {
  return factor == adapter_names(layer_of(factor) + ".weight").a;
}

/// Returns the entries of the base that PEFT saves for the weight `name`.
std::vector<std::string> base_copies(const std::string& name, bool tied) {
  std::vector<std::string> copies;
  for (const char* layer : {kEmbeddingLayer, kHeadLayer}) {
    const bool has_it = name == std::string(layer) + ".weight" || (tied && name == kEmbedding);
    if (has_it) copies.push_back(kPeftPrefix + std::string(layer) + kPeftBaseCopy);
  }
  return copies;
}

std::string without_last(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

std::string without_prefix(const std::string& name) {
  const std::string prefix = kPeftPrefix;
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

}  // namespace

std::vector<PeftModule> peft_modules(const ModelShape& shape) {
  std::vector<PeftModule> modules;
  std::map<std::string, std::vector<int64_t>> shapes;
  const std::vector<TensorEntry> adapters = declared_adapters(shape, at::kFloat);
  for (const TensorEntry& entry : adapters) shapes[entry.name] = entry.shape;
  for (const TensorEntry& entry : adapters) {
    if (!is_a(entry.name)) continue;
    const std::string layer = layer_of(entry.name), weight = layer + ".weight";
    const int64_t in_features = entry.shape[layer == kEmbeddingLayer ? 0 : 1];
    const int64_t rows = shapes.at(adapter_names(weight).b)[0];
    const FolderTensor stored = folder_tensor(shape, weight, {rows, in_features});
    const std::string name = without_last(stored.name);
    auto module = std::ranges::find(modules, name, &PeftModule::name);
    if (module == modules.end()) module = modules.insert(module, {name, {}, in_features, stored.shape[0]});
    module->parts.push_back({layer, stored.first_row, rows});
  }
  return modules;
}

std::vector<std::string> base_parameters_of_peft(const SafetensorsFile& file, const ModelShape& shape) {
  std::vector<std::string> names;
  for (const TensorEntry& entry : file.entries()) {
    if (entry.name.find(".lora_") != std::string::npos || entry.name.ends_with(kPeftBaseCopy)) continue;
    const std::string name = without_prefix(entry.name);
    if (name != kHead || !shape.tie_word_embeddings) names.push_back(name);
  }
  return names;
}

PeftWeights::PeftWeights(const std::filesystem::path& folder, const ModelShape& shape)
    : file_(folder / kPeftWeights),
      rank_(shape.adapter.rank),
      is_tied_(shape.tie_word_embeddings),
      modules_(peft_modules(shape)) {
  std::set<std::string> known;
  if (shape.tie_word_embeddings) known.insert(kPeftPrefix + std::string(kHead));
  for (const PeftModule& module : modules_) {
    check(module);
    known.insert({module.a(), module.b()});
  }
  for (const TensorEntry& declared : declared_tensors(shape, at::kFloat)) {
    std::vector<std::string> names = base_copies(declared.name, is_tied_);
    names.push_back(kPeftPrefix + declared.name);
    for (const std::string& name : names) {
      known.insert(name);
      if (!file_.contains(name) || file_.entry(name).shape == declared.shape) continue;
      throw InputError(file_.path().string() + ": " + name + " has shape " + describe_shape(file_.entry(name).shape) +
                       ", the model has " + describe_shape(declared.shape));
    }
  }
  for (const TensorEntry& entry : file_.entries()) {
    if (known.contains(entry.name)) continue;
    throw InputError(file_.path().string() + ": " + entry.name + " belongs to no adapter and no layer of the model");
  }
}

void PeftWeights::check(const PeftModule& module) const {
  const auto fail = [&](const std::string& name, const std::string& what) {
    throw InputError(file_.path().string() + ": " + name + " " + what);
  };
  for (const std::string& name : {module.a(), module.b()}) {
    if (!file_.contains(name)) fail(name, "is missing");
  }
  const std::vector<int64_t>&a = file_.entry(module.a()).shape, b = file_.entry(module.b()).shape;
  const auto num_parts = static_cast<int64_t>(module.parts.size());
  const int64_t rank = a.empty() ? 0 : a[0];
  if (rank != rank_ && rank != num_parts * rank_) {
    fail(module.a(), "has shape " + describe_shape(a) + ", which is not of rank " + std::to_string(rank_));
  }
  if (a != std::vector<int64_t>{rank, module.in_features}) {
    fail(module.a(),
         "has shape " + describe_shape(a) + ", the layer has " + std::to_string(module.in_features) + " inputs");
  }
  if (b != std::vector<int64_t>{module.out_features, rank}) {
    fail(module.b(),
         "has shape " + describe_shape(b) + ", the model has " + describe_shape({module.out_features, rank}));
  }
  if (num_parts == 1 || rank == rank_) return;
  const at::Tensor values = file_.read(module.b()).clone();
  for (int64_t i = 0; i < num_parts; ++i) {
    const PeftModule::Part& part = module.parts[static_cast<size_t>(i)];
    values.narrow(0, part.first_row, part.rows).narrow(1, i * rank_, rank_).zero_();
  }
  if (values.count_nonzero().item<int64_t>() > 0) {
    fail(module.b(), "mixes the layers that it joins, so that they have no adapters of rank " + std::to_string(rank_) +
                         ": merge it with PEFT (merge_and_unload)");
  }
}

at::Tensor PeftWeights::factor(const std::string& name) const {
  const std::string layer = layer_of(name);
  for (const PeftModule& module : modules_) {
    const auto part = std::ranges::find(module.parts, layer, &PeftModule::Part::layer);
    if (part == module.parts.end()) continue;
    const bool first = is_a(name);
    const at::Tensor values = file_.read(first ? module.a() : module.b());
    if (module.is_embedding()) return first ? values.t() : values;
    const bool shares_a = values.size(first ? 0 : 1) == rank_;
    const int64_t begin = shares_a ? 0 : (part - module.parts.begin()) * rank_;
    if (first) return values.narrow(0, begin, rank_);
    return values.narrow(0, part->first_row, part->rows).narrow(1, begin, rank_);
  }
  throw std::invalid_argument(name + " belongs to no adapter of the model");
}

bool PeftWeights::read(const Parameter& parameter) const {
  at::NoGradGuard no_grad;
  const std::string saved = kPeftPrefix + parameter.name;
  if (!is_adapter(parameter.name) && !file_.contains(saved)) return false;
  const at::Tensor values = is_adapter(parameter.name) ? factor(parameter.name) : file_.read(saved);
  parameter.valid().detach().copy_(own_part(values, parameter));
  return true;
}

at::Tensor PeftWeights::own_part(const at::Tensor& full, const Parameter& parameter) const {
  at::Tensor part = full;
  for (size_t dim = 0; dim < parameter.box.size.size(); ++dim) {
    part = part.narrow(static_cast<int64_t>(dim), parameter.box.start[dim], parameter.box.size[dim]);
  }
  return part;
}

void PeftWeights::check_base(const Parameter& parameter) const {
  at::NoGradGuard no_grad;
  for (const std::string& name : base_copies(parameter.name, is_tied_)) {
    if (!file_.contains(name)) continue;
    const at::Tensor own = parameter.valid().detach().to(at::kCPU), copy = own_part(file_.read(name), parameter);
    const auto rounded = [&](const at::Tensor& values) {
      return values.to(own.scalar_type()).to(copy.scalar_type()).to(own.scalar_type());
    };
    if (at::equal(rounded(own), rounded(copy))) continue;
    throw InputError(file_.path().string() + ": " + name + " differs from " + parameter.name +
                     " of the base: the adapter was trained with a different base: give that base");
  }
}

}  // namespace meshtrain

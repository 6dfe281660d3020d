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

constexpr std::string_view kEndOfA = ".lora_A.weight";

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
    if (!entry.name.ends_with(kEndOfA)) continue;
    const std::string layer = entry.name.substr(0, entry.name.size() - kEndOfA.size());
    const std::string weight = layer + ".weight";
    const int64_t in_features = entry.shape[1], rows = shapes.at(adapter_names(weight).b)[0];
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
    if (entry.name.find(".lora_") != std::string::npos) continue;
    const std::string name = without_prefix(entry.name);
    if (name != kHead || !shape.tie_word_embeddings) names.push_back(name);
  }
  return names;
}

PeftWeights::PeftWeights(const std::filesystem::path& folder, const ModelShape& shape)
    : file_(folder / kPeftWeights), rank_(shape.adapter.rank), modules_(peft_modules(shape)) {
  std::set<std::string> known;
  if (shape.tie_word_embeddings) known.insert(kPeftPrefix + std::string(kHead));
  for (const PeftModule& module : modules_) {
    check(module);
    known.insert({module.a(), module.b()});
  }
  for (const TensorEntry& declared : declared_tensors(shape, at::kFloat)) {
    const std::string name = kPeftPrefix + declared.name;
    known.insert(name);
    if (!file_.contains(name) || file_.entry(name).shape == declared.shape) continue;
    throw InputError(file_.path().string() + ": " + name + " has shape " + describe_shape(file_.entry(name).shape) +
                     ", the model has " + describe_shape(declared.shape));
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
  const std::string layer = without_last(without_last(name));
  for (const PeftModule& module : modules_) {
    const auto part = std::ranges::find(module.parts, layer, &PeftModule::Part::layer);
    if (part == module.parts.end()) continue;
    const bool is_a = name.ends_with(kEndOfA);
    const at::Tensor values = file_.read(is_a ? module.a() : module.b());
    const bool shares_a = values.size(is_a ? 0 : 1) == rank_;
    const int64_t begin = shares_a ? 0 : (part - module.parts.begin()) * rank_;
    if (is_a) return values.narrow(0, begin, rank_);
    return values.narrow(0, part->first_row, part->rows).narrow(1, begin, rank_);
  }
  throw std::invalid_argument(name + " belongs to no adapter of the model");
}

bool PeftWeights::read(const Parameter& parameter) const {
  at::NoGradGuard no_grad;
  const std::string saved = kPeftPrefix + parameter.name;
  if (!is_adapter(parameter.name) && !file_.contains(saved)) return false;
  at::Tensor values = is_adapter(parameter.name) ? factor(parameter.name) : file_.read(saved);
  for (size_t dim = 0; dim < parameter.box.size.size(); ++dim) {
    values = values.narrow(static_cast<int64_t>(dim), parameter.box.start[dim], parameter.box.size[dim]);
  }
  parameter.valid().detach().copy_(values);
  return true;
}

}  // namespace meshtrain

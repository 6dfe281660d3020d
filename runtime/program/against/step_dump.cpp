#include "runtime/program/against/step_dump.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "mesh/base/error.h"
#include "mesh/base/files/json_object.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/text/tokenizer/json_cursor.h"
#include "runtime/training/model/folder_tensors.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

fs::path existing(const fs::path& folder) {
  std::error_code unreadable;
  if (fs::is_regular_file(folder / "step.json", unreadable)) return folder;
  throw InputError("--against " + folder.string() +
                   ": the folder has no step.json: give the complete folder that tools/dump_step.py wrote");
}

double number(const JsonCursor& cursor) {
  if (!cursor.value().is_number()) cursor.fail("is not a number");
  return cursor.value().get<double>();
}

double number_or(const JsonCursor& cursor, const std::string& key, double absent) {
  const std::optional<JsonCursor> found = cursor.find(key);
  return found ? number(*found) : absent;
}

DumpedUpdate read_update(const JsonCursor& group) {
  DumpedUpdate update{.learning_rate = number(group.at("lr"))};
  if (const auto betas = group.find("betas")) {
    update.beta1 = number(betas->at(size_t{0}));
    update.beta2 = number(betas->at(1));
  }
  update.eps = number_or(group, "eps", update.eps);
  update.weight_decay = number_or(group, "weight_decay", 0);
  for (const char* flag : {"amsgrad", "maximize", "nesterov"}) {
    if (group.flag_or(flag, false)) group.fail(std::string("has ") + flag + ", which is not supported here");
  }
  if (number_or(group, "momentum", 0) != 0) group.fail("has momentum, which is not supported here");
  return update;
}

}  // namespace

StepDump::StepDump(const fs::path& folder)
    : folder_(existing(folder)),
      shape_(read_config_json(folder / "before" / "config.json")),
      before_(open_weights(folder / "before", shape_)),
      gradients_(folder / "gradients"),
      after_(folder / "after") {
  if (shape_.experts) {
    throw InputError(
        (folder / "before" / "config.json").string() +
        ": the model has experts, and such a step cannot be compared: rounding may change the choice of experts");
  }
  check_weights(before_, shape_);
  read_step();
  read_batch();
}

void StepDump::read_step() {
  const std::string file = (folder_ / "step.json").string();
  const nlohmann::json document = read_json_object(file);
  const JsonCursor step(file, document);
  loss_ = number(step.at("loss"));
  if (const auto norm = step.find("grad_norm")) grad_norm_ = number(*norm);
  clip_norm_ = number_or(step, "clip_norm", 0);
  const JsonCursor mesh = step.at("mesh");
  if (!mesh.value().is_object()) mesh.fail("is not an object");
  for (const auto& [axis, size] : mesh.value().items()) {
    if (!size.is_number_integer() || size.get<int64_t>() < 1) mesh.at(axis).fail("is not a number of ranks");
    mesh_[axis] = size.get<int64_t>();
  }
  if (step.find("sample")) sample_.emplace(folder_ / "sample");
  if (const auto layers = step.find("layers")) {
    for (size_t i = 0; i < layers->size(); ++i) {
      layers_.push_back(layers->at(i).id());
      if (layers_.back() >= shape_.num_hidden_layers) layers->at(i).fail("is not a layer of the model");
    }
  }
  const JsonCursor optimizer = step.at("optimizer");
  optimizer_ = optimizer.at("name").text();
  num_updates_ = static_cast<int64_t>(number(optimizer.at("updates")));
  const JsonCursor groups = optimizer.at("groups");
  for (size_t i = 0; i < groups.size(); ++i) {
    const JsonCursor names = groups.at(i).at("parameters");
    const DumpedUpdate update = read_update(groups.at(i));
    for (size_t j = 0; j < names.size(); ++j) updates_[names.at(j).text()] = update;
  }
}

void StepDump::read_batch() {
  const SafetensorsFile file(folder_ / "batch.safetensors");
  const auto fail = [&](const std::string& what) { throw InputError(file.path().string() + ": " + what); };
  inputs_ = file.read("input_ids").to(at::kLong);
  labels_ = file.read("labels").to(at::kLong);
  if (inputs_.dim() != 2 || inputs_.numel() == 0 || inputs_.sizes() != labels_.sizes()) {
    fail("input_ids and labels must both be [samples, length]");
  }
  const auto [least, most] = at::aminmax(inputs_);
  if (least.item<int64_t>() < 0 || most.item<int64_t>() >= shape_.vocab_size) {
    fail("input_ids has tokens outside the vocabulary of " + std::to_string(shape_.vocab_size));
  }
  if (labels_.max().item<int64_t>() >= shape_.vocab_size) fail("labels has tokens outside the vocabulary");
  if (labels_.max().item<int64_t>() < 0) fail("no label counts");
  for (const auto& [name, to] : {std::pair{"rank", &ranks_}, {"micro_batch", &micro_batches_}}) {
    const at::Tensor values = file.read(name).to(at::kLong);
    if (values.dim() != 1 || values.size(0) != inputs_.size(0))
      fail(std::string(name) + " must have one number for each sample");
    const int64_t* const begin = values.const_data_ptr<int64_t>();
    to->assign(begin, begin + values.numel());
  }
  if (file.contains("documents")) read_documents(file);
}

void StepDump::read_documents(const SafetensorsFile& file) {
  const at::Tensor numbers = file.read("documents").to(at::kLong).contiguous();
  if (numbers.sizes() != inputs_.sizes()) {
    throw InputError(file.path().string() + ": documents must have a number for each token, in the shape of input_ids");
  }
  const int64_t* number = numbers.const_data_ptr<int64_t>();
  bool divided = false;
  for (int64_t sample = 0; sample < numbers.size(0); ++sample, number += numbers.size(1)) {
    std::vector<int64_t>& starts = documents_.emplace_back();
    for (int64_t i = 1; i < numbers.size(1); ++i) {
      if (number[i] != number[i - 1]) starts.push_back(i);
    }
    divided = divided || !starts.empty();
  }
  if (!divided) documents_.clear();
}

at::Tensor StepDump::read(const SafetensorsFolder& from, const std::string& parameter,
                          const std::vector<int64_t>& shape) const {
  const FolderTensor tensor = folder_tensor(shape_, parameter, shape);
  if (!from.contains(tensor.name)) return {};
  const std::vector<int64_t>& dumped = from.entry(tensor.name).shape;
  const auto [_, positions] = sample(parameter, shape);
  if (positions.defined() && dumped == sample_->entry(tensor.name).shape) {
    return from.read(tensor.name).to(at::kDouble).index_select(0, positions);
  }
  if (dumped != tensor.shape) {
    throw InputError(from.path().string() + ": " + tensor.name + " has shape " + describe_shape(dumped) +
                     ", the model has " + describe_shape(tensor.shape));
  }
  const at::Tensor values = from.read(tensor.name).to(at::kDouble);
  return elements(parameter, values.narrow(0, tensor.first_row, shape.front()).contiguous());
}

std::pair<at::Tensor, at::Tensor> StepDump::sample(const std::string& parameter,
                                                   const std::vector<int64_t>& shape) const {
  const FolderTensor tensor = folder_tensor(shape_, parameter, shape);
  if (!sample_ || !sample_->contains(tensor.name)) return {};
  const at::Tensor numbers = sample_->read(tensor.name);
  const int64_t numel = c10::multiply_integers(shape), row = numel / shape.front();
  if (numbers.scalar_type() != at::kLong || numbers.dim() != 1 || numbers.numel() == 0 ||
      numbers.min().item<int64_t>() < 0 || numbers.max().item<int64_t>() >= c10::multiply_integers(tensor.shape)) {
    throw InputError(sample_->path().string() + ": " + tensor.name + " must have the indices of elements, int64 [n]");
  }
  const at::Tensor own = numbers - tensor.first_row * row;
  const at::Tensor positions = own.ge(0).logical_and(own.lt(numel)).nonzero().squeeze(1);
  return {own.index_select(0, positions), positions};
}

at::Tensor StepDump::elements(const std::string& parameter, const at::Tensor& values) const {
  const auto [numbers, _] = sample(parameter, values.sizes().vec());
  return numbers.defined() ? values.reshape(-1).index_select(0, numbers) : values;
}

bool StepDump::covers(const std::string& parameter) const {
  constexpr std::string_view kPrefix = "model.layers.";
  return layers_.empty() || !parameter.starts_with(kPrefix) ||
         std::ranges::count(layers_, std::stoll(parameter.substr(kPrefix.size()))) > 0;
}

int64_t StepDump::num_elements(const std::string& parameter, const std::vector<int64_t>& shape) const {
  if (!covers(parameter)) return 0;
  const auto [numbers, _] = sample(parameter, shape);
  return numbers.defined() ? numbers.numel() : c10::multiply_integers(shape);
}

std::string StepDump::left_out() const {
  std::string text;
  if (!layers_.empty()) {
    const std::set<int64_t> chosen(layers_.begin(), layers_.end());
    std::string list;
    for (const int64_t layer : chosen) list += (list.empty() ? "" : ", ") + std::to_string(layer);
    text = "all layers but " + list;
  }
  if (sample_) {
    int64_t most = 0;
    for (const std::string& name : sample_->names()) most = std::max(most, sample_->entry(name).shape.front());
    text += (text.empty() ? "" : "; ") + std::string("in ") + counted(sample_->names().size(), "tensor") +
            " all but at most " + counted(most, "element");
  }
  return text.empty() ? "" : "gradients and updates: " + text;
}

at::Tensor StepDump::before(const std::string& parameter, const std::vector<int64_t>& shape) const {
  return read(before_, parameter, shape);
}

at::Tensor StepDump::gradient(const std::string& parameter, const std::vector<int64_t>& shape) const {
  return read(gradients_, parameter, shape);
}

at::Tensor StepDump::after(const std::string& parameter, const std::vector<int64_t>& shape) const {
  return read(after_, parameter, shape);
}

at::ScalarType StepDump::gradient_dtype() const {
  const std::vector<std::string> names = gradients_.names();
  if (names.empty()) throw InputError(gradients_.path().string() + ": the file has no gradients");
  return gradients_.entry(names.front()).dtype;
}

at::ScalarType StepDump::weight_dtype() const {
  return before_.entry(kEmbedding).dtype;
}

std::optional<DumpedUpdate> StepDump::update(const std::string& parameter, const std::vector<int64_t>& shape) const {
  const auto found = updates_.find(folder_tensor(shape_, parameter, shape).name);
  return found == updates_.end() ? std::nullopt : std::optional(found->second);
}

double StepDump::largest_decay() const {
  double most = 0;
  for (const auto& [name, update] : updates_) most = std::max(most, update.weight_decay);
  return most;
}

}  // namespace meshtrain

#include "runtime/program/against/step_dump.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "mesh/base/files/json_object.h"
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
                   ": there is no step.json in it: give a folder that tools/dump_step.py wrote, complete");
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
    fail("input_ids and labels must be [samples, length], of one shape");
  }
  const auto [least, most] = at::aminmax(inputs_);
  if (least.item<int64_t>() < 0 || most.item<int64_t>() >= shape_.vocab_size) {
    fail("input_ids has tokens outside of the vocabulary of " + std::to_string(shape_.vocab_size));
  }
  if (labels_.max().item<int64_t>() >= shape_.vocab_size) fail("labels has tokens outside of the vocabulary");
  if (labels_.max().item<int64_t>() < 0) fail("no label counts");
  for (const auto& [name, to] : {std::pair{"rank", &ranks_}, {"micro_batch", &micro_batches_}}) {
    const at::Tensor values = file.read(name).to(at::kLong);
    if (values.dim() != 1 || values.size(0) != inputs_.size(0))
      fail(std::string(name) + " must have one number a sample");
    const int64_t* const begin = values.const_data_ptr<int64_t>();
    to->assign(begin, begin + values.numel());
  }
  if (file.contains("documents")) read_documents(file);
}

void StepDump::read_documents(const SafetensorsFile& file) {
  const at::Tensor numbers = file.read("documents").to(at::kLong).contiguous();
  if (numbers.sizes() != inputs_.sizes()) {
    throw InputError(file.path().string() + ": documents must have a number for each token, as input_ids");
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
  if (from.entry(tensor.name).shape != tensor.shape) {
    throw InputError(from.path().string() + ": " + tensor.name + " has shape " +
                     describe_shape(from.entry(tensor.name).shape) + ", the model has " + describe_shape(tensor.shape));
  }
  const at::Tensor values = from.read(tensor.name).to(at::kDouble);
  return values.narrow(0, tensor.first_row, shape.front()).contiguous();
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
  if (names.empty()) throw InputError(gradients_.path().string() + ": there are no gradients in it");
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

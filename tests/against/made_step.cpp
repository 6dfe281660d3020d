#include "tests/against/made_step.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "mesh/device/aten.h"
#include "runtime/training/safetensors/writer.h"

namespace meshtrain::testing {

namespace fs = std::filesystem;

MadeStep::MadeStep(fs::path folder, MadeStepOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  const fs::path fixture = fs::path(std::getenv("MESHTRAIN_SOURCE")) / "tests/fixtures" / options_.family;
  const SafetensorsFolder weights(fixture);
  Tensors stored;
  for (const std::string& name : weights.names()) stored[name] = weights.read(name).to(options_.weights);
  write("before", stored);
  fs::copy_file(fixture / "config.json", folder_ / "before/config.json");
  write_batch();
  step = {{"loss", 1.0},
          {"mesh", {{"dp", options_.ranks}}},
          {"clip_norm", kClip},
          {"optimizer", {{"name", "AdamW"}, {"updates", 1}, {"groups", nlohmann::json::array()}}}};
  write_step();
  write("gradients", {{"none", at::zeros({1})}});
  write("after", {{"none", at::zeros({1})}});
  const StepDump dump(folder_);
  own = compute_step(dump, reading_of(dump), "fp64", /*apart=*/true);
  for (const std::string& name : own.names) before[name] = dump.before(name, own.shapes.at(name));
  step["loss"] = own.loss();
  step["optimizer"]["groups"].push_back(
      {{"parameters", own.names}, {"lr", kRate}, {"betas", {0.9, 0.95}}, {"eps", 1e-8}, {"weight_decay", kDecay}});
  take(of_parts(std::vector<double>(own.parts.size(), 1)));
}

void MadeStep::write_batch() const {
  at::Generator generator = at::detail::createCPUGenerator(7);
  const int64_t vocabulary = nlohmann::json::parse(std::ifstream(folder_ / "before/config.json")).at("vocab_size");
  const at::Tensor inputs = at::randint(vocabulary, {8, 12}, generator, at::kLong);
  const at::Tensor labels = at::randint(vocabulary, {8, 12}, generator, at::kLong);
  for (int64_t i = 0; i < 8; ++i) labels[i].narrow(0, 0, i).fill_(-100);
  const at::Tensor part = at::arange(8).div(8 / options_.ranks / options_.micro_batches, "floor");
  Tensors batch = {{"input_ids", inputs},
                   {"labels", labels},
                   {"rank", part.div(options_.micro_batches, "floor")},
                   {"micro_batch", part.remainder(options_.micro_batches)}};
  if (options_.documents) batch["documents"] = at::arange(12).ge(5).to(at::kLong).expand({8, 12}).contiguous();
  save("batch.safetensors", batch);
}

double MadeStep::norm(const Tensors& tensors) {
  double squares = 0;
  for (const auto& [name, values] : tensors) squares += values.square().sum().item<double>();
  return std::sqrt(squares);
}

MadeStep::Tensors MadeStep::of_parts(const std::vector<double>& weights) const {
  Tensors result;
  for (const std::string& name : own.names) {
    at::Tensor& sum = result[name] = at::zeros(own.shapes.at(name), at::kDouble);
    for (size_t k = 0; k < weights.size(); ++k) {
      sum += own.parts[k].gradients.at(name) * (weights[k] / static_cast<double>(own.num_counted()));
    }
  }
  return result;
}

void MadeStep::update(double clip_factor, const std::function<double(const std::string&)>& decay) {
  for (const auto& [name, gradient] : gradients) {
    const at::Tensor clipped = gradient * std::min(clip_factor, 1.0);
    after[name] = before[name] - kRate * (clipped / (clipped.abs() + 1e-8) + decay(name) * before[name]);
  }
}

void MadeStep::take(const Tensors& changed) {
  for (const auto& [name, values] : changed) gradients[name] = values;
  step["grad_norm"] = norm(gradients);
  update(kClip / norm(gradients), kDecay);
}

void MadeStep::take_reading(const StepReading& reading) {
  const OwnStep other = compute_step(StepDump(folder_), reading, "fp64", /*apart=*/false);
  Tensors changed;
  for (const std::string& name : other.names) changed[name] = other.gradient(name);
  step["loss"] = other.loss();
  take(changed);
}

void MadeStep::write() const {
  write_step();
  write("gradients", gradients);
  Tensors stored;
  for (const auto& [name, values] : after) {
    stored[name] = options_.weights == at::kFloat ? values : values.to(options_.weights);
  }
  write("after", stored);
}

void MadeStep::write_step() const {
  std::ofstream(folder_ / "step.json") << step;
}

void MadeStep::write(const std::string& kind, const Tensors& tensors) const {
  fs::create_directories(folder_ / kind);
  save(kind + "/model.safetensors", tensors);
}

void MadeStep::save(const std::string& file, const Tensors& tensors) const {
  std::vector<TensorEntry> entries;
  for (const auto& [name, values] : tensors) entries.push_back({name, values.scalar_type(), values.sizes().vec()});
  SafetensorsWriter writer(folder_ / file, entries);
  for (const auto& [name, values] : tensors) writer.write(name, values);
  writer.finish();
}

}  // namespace meshtrain::testing

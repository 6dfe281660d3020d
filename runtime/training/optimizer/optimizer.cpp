#include "runtime/training/optimizer/optimizer.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/training/optimizer/adamw.h"
#include "runtime/training/optimizer/muon.h"
#include "runtime/training/optimizer/sgd.h"

namespace meshtrain {

Optimizer::Optimizer(const std::vector<ParameterGroup>& groups)
    : count_(
          at::zeros({}, groups.at(0).fsdp->units().at(0).buffers().at(0).shard_values().options().dtype(at::kFloat))) {
  for (const ParameterGroup& group : groups) {
    const std::vector<Unit>& units = group.fsdp->units();
    for (size_t unit = 0; unit < units.size(); ++unit) {
      const size_t first = trained_.size();
      for (const FlatBuffer& buffer : units[unit].buffers()) {
        if (buffer.trainable()) trained_.push_back({group.fsdp, unit, &buffer, /*ends_unit=*/false});
      }
      if (trained_.size() > first) trained_.back().ends_unit = true;
    }
  }
}

void Optimizer::updated_before(const FlatBuffer* next) {
  if (!reports_) return;
  const auto begin = trained_.begin() + static_cast<ptrdiff_t>(num_updated_);
  const auto end = next == nullptr ? trained_.end()
                                   : std::find_if(begin, trained_.end(),
                                                  [&](const TrainedBuffer& each) { return each.buffer == next; });
  if (next != nullptr && end == trained_.end()) {
    throw std::logic_error("an optimizer must update buffers in the order of trainable_buffers()");
  }
  for (const auto last = static_cast<size_t>(end - trained_.begin()); num_updated_ < last; ++num_updated_) {
    const TrainedBuffer& updated = trained_[num_updated_];
    if (updated.ends_unit) updated.fsdp->unit_changed(updated.unit, rounds());
  }
}

void Optimizer::step(const UpdateInputs& inputs) {
  const at::NoGradGuard no_grad;
  if (inputs.skip.defined()) {
    count_.add_(inputs.skip.eq(false));
  } else {
    count_.add_(1);
  }
  num_updated_ = 0;
  update(inputs);
}

UpdateInputs Optimizer::inputs_of(double learning_rate) const {
  return {at::full({}, learning_rate, count_.options().dtype(at::kDouble))};
}

int64_t Optimizer::num_steps() const {
  return static_cast<int64_t>(host_value(count_));
}

void Optimizer::resume(int64_t num_steps) {
  count_.fill_(num_steps);
}

void Optimizer::finish_copies() const {
  for (StatePager* pager : pagers()) pager->finish();
}

CopyCosts Optimizer::copy_costs() const {
  CopyCosts costs;
  for (const StatePager* pager : pagers()) costs = costs + pager->copy_costs();
  return costs;
}

int64_t Optimizer::paging_bytes() const {
  int64_t bytes = 0;
  for (const StatePager* pager : pagers()) bytes += pager->device_bytes();
  return bytes;
}

namespace {

struct RegistryEntry {
  std::string name;
  OptimizerFactory make;
  OptimizerTraits traits;
};

template <class T>
RegistryEntry entry_of(const char* name, OptimizerTraits traits) {
  return {name,
          [](const auto& options, const auto& groups, const auto& rounding) {
            return std::make_unique<T>(options, groups, rounding);
          },
          std::move(traits)};
}

std::vector<RegistryEntry>& registry() {
  const auto moments = [](const auto&, const auto&) { return 2; };
  const auto velocity = [](const auto& options, const auto&) { return options.momentum > 0; };
  const auto by_rule = [](const auto& options, const auto& of) { return rule_of(of, options).full_matrix ? 1 : 2; };
  static std::vector<RegistryEntry> all = {
      entry_of<AdamW>(
          "adamw",
          {.state_elements = moments, .rounds_stochastically = true, .on_device = true, .second_moments = true}),
      entry_of<Sgd>("sgd", {.state_elements = velocity, .rounds_stochastically = true}),
      entry_of<Muon>("muon", {.state_elements = by_rule, .by_element = false, .second_moments = true})};
  return all;
}

const RegistryEntry& find(const std::string& name) {
  std::string names;
  for (const RegistryEntry& each : registry()) {
    if (each.name == name) return each;
    names += (names.empty() ? "" : ", ") + each.name;
  }
  throw InputError("optimizer.name", "\"" + name + "\" is not known: use one of " + names);
}

}  // namespace

void register_optimizer(const std::string& name, OptimizerFactory make, OptimizerTraits traits) {
  if (std::ranges::count(registry(), name, &RegistryEntry::name) > 0) {
    throw std::invalid_argument("an optimizer named " + name + " already exists");
  }
  registry().push_back({name, std::move(make), std::move(traits)});
}

const OptimizerTraits& optimizer_traits(const std::string& name) {
  return find(name).traits;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const RegistryEntry& each : registry()) names.push_back(each.name);
  return names;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
                                          const std::optional<StochasticRounding>& rounding) {
  return find(options.name).make(options, groups, rounding);
}

}  // namespace meshtrain

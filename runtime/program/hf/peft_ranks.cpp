#include "runtime/program/hf/peft_ranks.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

constexpr const char* kRanks = "rank_pattern";
constexpr const char* kAlphas = "alpha_pattern";
constexpr double kRounding = 1e-9;  // of a square root that was written as text

/// The values that rank_pattern or alpha_pattern gives to modules.
class Pattern {
 public:
  Pattern(ConfigReader& config, std::string key) : config_(config), key_(std::move(key)) {
    if (!config.has(key_)) return;
    const nlohmann::json& pattern = config.value(key_);
    if (!pattern.is_object()) config.fail(key_, "is " + shown(pattern) + ", not a JSON object");
    for (const auto& [name, value] : pattern.items()) {
      if (!value.is_number() || value.get<double>() <= 0) config.fail(key_, "is " + shown(pattern));
      values_.emplace_back(expression(name), value.get<double>());
    }
  }

  /// Returns the value for `module`, or `absent`. PEFT takes the first key of the file that matches.
  double value(const std::string& module, double absent) const {
    std::set<double> found;
    for (const auto& [expression, value] : values_) {
      if (std::regex_match(module, expression)) found.insert(value);
    }
    if (found.size() > 1) {
      config_.fail(key_, "is " + shown(config_.value(key_)) + ": two keys match " + module);
    }
    return found.empty() ? absent : *found.begin();
  }

 private:
  std::regex expression(const std::string& name) const {
    const std::string same_in_python = "dDwWsSbB";
    bool is_understood = true;
    for (size_t i = 0; i + 1 < name.size(); ++i) {
      if (name[i] != '\\') continue;
      const char escaped = name[++i];
      is_understood = is_understood && (!std::isalnum(static_cast<unsigned char>(escaped)) ||
                                        same_in_python.find(escaped) != std::string::npos);
    }
    try {
      if (is_understood) return std::regex("(.*\\.)?(" + name + ")");
    } catch (const std::regex_error&) {
    }
    config_.fail(key_, shown(name) + " is a regular expression that is not supported: write the modules' names");
  }

  ConfigReader& config_;
  std::string key_;
  std::vector<std::pair<std::regex, double>> values_;
};

double scale(const AdapterShape& adapter, double alpha, int64_t rank) {
  return adapter_scale({.rank = rank, .alpha = alpha, .use_rslora = adapter.use_rslora});
}

bool is_equal(double value, double other) {
  return std::abs(value - other) <= kRounding * std::abs(other);
}

/// Returns the rank of single layers: that of modules of one layer, or r if each module has a multiple of it, or that
/// of all modules. None: there are several.
std::optional<int64_t> rank_of_layers(const std::vector<PeftModule>& modules, const std::vector<int64_t>& ranks,
                                      int64_t r) {
  std::set<int64_t> single;
  bool has_multiples = true;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (modules[i].parts.size() == 1) single.insert(ranks[i]);
    has_multiples = has_multiples && ranks[i] % r == 0;
  }
  if (single.empty()) single.insert(has_multiples ? r : ranks.front());
  if (single.size() > 1) return std::nullopt;
  for (size_t i = 0; i < modules.size(); ++i) {
    const int64_t rank = *single.begin();
    if (ranks[i] % rank != 0 || ranks[i] / rank > static_cast<int64_t>(modules[i].parts.size())) return std::nullopt;
  }
  return *single.begin();
}

}  // namespace

void take_peft_ranks(ConfigReader& config, const SafetensorsFile& file, const std::vector<PeftModule>& modules,
                     AdapterShape& adapter) {
  const auto refuse = [&](const std::string& key) {
    config.fail(key, "is " + shown(config.value(key)) + ": all adapters of a model must have the same rank and alpha");
  };
  const int64_t r = adapter.rank;
  const double lora_alpha = adapter.alpha;
  const Pattern rank_pattern(config, kRanks), alpha_pattern(config, kAlphas);
  std::vector<int64_t> ranks;
  for (const PeftModule& module : modules) {
    const double value = rank_pattern.value(module.name, static_cast<double>(r));
    ranks.push_back(std::max(int64_t{1}, static_cast<int64_t>(value)));
  }
  const std::optional<int64_t> rank = rank_of_layers(modules, ranks, r);
  if (!rank) refuse(kRanks);
  adapter.rank = *rank;
  std::optional<double> first;
  for (size_t i = 0; i < modules.size(); ++i) {
    const TensorEntry& a = file.entry(modules[i].a());
    if (a.shape.empty() || a.shape[0] != ranks[i]) {
      throw InputError(file.path().string() + ": " + a.name + " has shape " + describe_shape(a.shape) + ", but " +
                       kPeftConfig + " gives it rank " + std::to_string(ranks[i]));
    }
    const double alpha = alpha_pattern.value(modules[i].name, lora_alpha), own = scale(adapter, alpha, ranks[i]);
    if (!first) {
      first = own;
      adapter.alpha = ranks[i] == *rank ? alpha : alpha * own / scale(adapter, alpha, *rank);
    }
    if (!is_equal(own, *first)) refuse(config.has(kAlphas) && !config.value(kAlphas).empty() ? kAlphas : kRanks);
  }
  if (is_equal(scale(adapter, lora_alpha, *rank), *first)) adapter.alpha = lora_alpha;
}

}  // namespace meshtrain

#include "runtime/foreign/foreign_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "mesh/error.h"
#include "runtime/foreign/conversion.h"
#include "runtime/yaml/layers.h"

namespace meshtrain {
namespace {

template <size_t N>
bool has_one_of(const YamlValue& root, const std::array<const char*, N>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return root.find(key) != nullptr; });
}

constexpr std::array<const char*, 4> kOfAccelerate = {"distributed_type", "compute_environment", "num_processes",
                                                      "fsdp_config"};
constexpr std::array<const char*, 7> kOfDeepSpeed = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "fp16", "bf16",
    "optimizer",        "gradient_accumulation_steps"};

/// Throws InputError, with the location and what was expected there, unless `text` is JSON. YAML, which values are read
/// as, allows more.
void check_json(const std::string& text, const std::shared_ptr<const YamlSource>& source) try {
  [[maybe_unused]] const auto json = nlohmann::json::parse(text);
} catch (const nlohmann::json::parse_error& error) {
  const std::string before = text.substr(0, error.byte > 0 ? error.byte - 1 : 0), what = error.what();
  const size_t line_break = before.rfind('\n'), reason = what.find("syntax error");
  const YamlLocation location{source, static_cast<int>(1 + std::ranges::count(before, '\n')),
                              static_cast<int>(before.size() - (line_break + 1) + 1)};
  throw InputError(location.text() + ": not valid JSON: " + (reason == std::string::npos ? what : what.substr(reason)));
}

}  // namespace

std::string recipe_from(const std::filesystem::path& file) {
  auto source = std::make_shared<YamlSource>();
  source->name = file.string();
  source->folder = std::filesystem::absolute(file).parent_path();
  const std::string text = read_short_file(file, file.string() + ": ");
  const bool is_toml = file.extension() == ".toml";
  if (file.extension() == ".json") check_json(text, source);
  const YamlValue root = is_toml ? parse_toml(text, source) : parse_yaml(text, source);
  if (root.kind != YamlValue::Kind::Map) {
    throw InputError(file.string() + ": a configuration is a map of keys, not " + root.shown());
  }
  const auto convert = [&](const char* tool, void (*converter)(Conversion&)) {
    Conversion conversion(tool, root);
    converter(conversion);
    return conversion.text(file.filename().string());
  };
  if (is_toml) return convert("torchtitan", convert_torchtitan);
  if (root.find("train") != nullptr && root.find("model") != nullptr) {
    throw InputError(file.string() + ": a recipe of meshtrain already");
  }
  if (has_one_of(root, kOfAccelerate)) return convert("accelerate", convert_accelerate);
  if (has_one_of(root, kOfDeepSpeed)) return convert("DeepSpeed", convert_deepspeed);
  throw InputError(file.string() +
                   ": not a configuration of torchtitan (.toml), of accelerate (it has distributed_type) or of "
                   "DeepSpeed (it has train_batch_size or zero_optimization)");
}

}  // namespace meshtrain

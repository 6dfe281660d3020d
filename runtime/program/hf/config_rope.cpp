#include "runtime/program/hf/config_rope.h"

#include <algorithm>
#include <array>
#include <string>

#include "runtime/training/model/families.h"
#include "runtime/training/model/rope_scaling.h"

namespace meshtrain {
namespace {

using nlohmann::json;

constexpr const char* kOriginal = "original_max_position_embeddings";
constexpr const char* kPart = "partial_rotary_factor";
constexpr int64_t kPhi3Original = 4096;  // of transformers' Phi3Config, when the key is absent

/// Reads the keys that transformers reads of each type; it ignores those of other types.
RopeScaling read_scaling(ConfigReader& rope, const std::string& type) {
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", kOriginal, "beta_fast", "beta_slow",
                          "attention_factor", "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor"}) {
    rope.ignore(key);
  }
  RopeScaling scaling;
  scaling.type = type;
  if (type == "default") return scaling;
  if (type == "longrope") {
    const double factor = rope.number_or("factor", 0);
    if (factor > 1) scaling.factor = factor;
    if (rope.has("factor") && factor <= 1)
      scaling.attention_factor = 1;  // as transformers derives it from such a factor
    if (rope.has(kOriginal)) scaling.original_max_position_embeddings = rope.integer(kOriginal);
    if (rope.has("attention_factor")) scaling.attention_factor = rope.number("attention_factor");
    scaling.short_factor = rope.numbers("short_factor");
    scaling.long_factor = rope.numbers("long_factor");
    return scaling;
  }
  scaling.factor = rope.number("factor");
  if (type == "llama3") {
    scaling.low_freq_factor = rope.number("low_freq_factor");
    scaling.high_freq_factor = rope.number("high_freq_factor");
    scaling.original_max_position_embeddings = rope.integer(kOriginal);
  } else if (type == "yarn") {
    scaling.original_max_position_embeddings = rope.integer_or(kOriginal, 0);
    scaling.beta_fast = rope.number_or("beta_fast", scaling.beta_fast);
    scaling.beta_slow = rope.number_or("beta_slow", scaling.beta_slow);
    if (rope.has("attention_factor")) {
      scaling.attention_factor = rope.number("attention_factor");
    } else if (rope.has("mscale") && rope.has("mscale_all_dim")) {  // one alone has no effect
      scaling.mscale = rope.number("mscale");
      scaling.mscale_all_dim = rope.number("mscale_all_dim");
    }
    scaling.truncate = rope.boolean_or("truncate", !rope.mentions("truncate"));  // null is false to transformers
  }
  return scaling;
}

std::string type_of(ConfigReader& rope, const Family& family) {
  rope.ignore("rope_type");
  rope.ignore("type");
  std::string type = rope.has("type") ? rope.text("type") : "default";
  if (rope.has("rope_type")) {
    if (rope.has("type") && rope.text("rope_type") != type) rope.fail("type", "and rope_type differ");
    type = rope.text("rope_type");
  }
  // Names that Phi's first folders used.
  if (family.chooses_longrope && (type == "su" || type == "yarn")) type = "longrope";
  const auto refuse = [&](const std::string& known) {
    rope.fail("rope_type", "is \"" + type + "\", which is not available for a " + family.name + " (" + known + " are)");
  };
  constexpr std::array kTypes = {"default", "linear", "llama3", "yarn", "dynamic"};
  if (family.chooses_longrope) {
    if (type != "default" && type != "longrope") refuse("default and longrope");
  } else if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
    refuse("default, linear, llama3, yarn and dynamic");
  }
  return type;
}

/// Phi's folders have the original length outside of the scaling, which decides.
void read_outer_original(ConfigReader& config, const ConfigReader& rope, const Family& family, RopeScaling& scaling) {
  if (!family.chooses_longrope || scaling.type != "longrope") return;
  const int64_t outer = config.integer_or(kOriginal, kPhi3Original);
  if (scaling.original_max_position_embeddings > 0 && scaling.original_max_position_embeddings != outer) {
    rope.fail(kOriginal, "is " + std::to_string(scaling.original_max_position_embeddings) +
                             ", but transformers uses the one outside rope_scaling: " + std::to_string(outer));
  }
  scaling.original_max_position_embeddings = outer;
}

double read_part(ConfigReader& reader, const Family& family, double absent) {
  const double part = reader.number_or(kPart, absent);
  if (part != 1 && !family.chooses_rotary_part)
    reader.fail(kPart, "is not 1: a " + family.name + " rotates complete heads");
  if (part > 1) reader.fail(kPart, "is above 1");
  return part;
}

/// Reads one rotary map, of all layers or of those of one type.
void read_one(ConfigReader& config, ConfigReader& rope, ModelShape& shape) {
  const Family& family = family_of(shape);
  const std::string type = type_of(rope, family);
  const double theta = rope.number_or("rope_theta", shape.rope_theta);
  if (config.has("rope_theta") && theta != shape.rope_theta) rope.fail("rope_theta", "differs from the one outside");
  shape.rope_theta = theta;
  shape.partial_rotary_factor = read_part(rope, family, shape.partial_rotary_factor);
  RopeScaling scaling = read_scaling(rope, type);
  read_outer_original(config, rope, family, scaling);
  if (type != "default") shape.rope_scaling = scaling;
  if (const auto mistake = rope_mistake(shape)) rope.fail(mistake->key, mistake->what);
  rope.refuse_others();
}

/// Reads the theta of sliding layers, which nothing scales.
void read_sliding(ConfigReader& config, ConfigReader& rope, ModelShape& shape) {
  const std::string type = type_of(rope, family_of(shape));
  if (type != "default") rope.fail("rope_type", "is \"" + type + "\": sliding layers have only default");
  const double theta = rope.number_or("rope_theta", shape.rope_local_base_freq);
  if (family_of(shape).names_local_theta && config.has("rope_local_base_freq") && theta != shape.rope_local_base_freq) {
    rope.fail("rope_theta", "differs from rope_local_base_freq");
  }
  shape.rope_local_base_freq = theta;
  read_part(rope, family_of(shape), 1);
  rope.refuse_others();
}

}  // namespace

void read_rope(ConfigReader& config, ModelShape& shape) {
  const Family& family = family_of(shape);
  shape.rope_theta = config.number_or("rope_theta", family.rope_theta);
  shape.partial_rotary_factor = read_part(config, family, family.partial_rotary_factor);
  shape.rope_local_base_freq = family.rope_local_base_freq;
  if (family.names_local_theta) {
    shape.rope_local_base_freq = config.number_or("rope_local_base_freq", family.rope_local_base_freq);
  }
  if (family.chooses_longrope) config.ignore(kOriginal);
  config.ignore("rope_parameters");
  config.ignore("rope_scaling");
  const bool version5 = config.has("rope_parameters");
  if (!version5 && !config.has("rope_scaling")) {
    shape.rope_scaling = family.rope_scaling;
    return;
  }
  if (version5 && config.has("rope_scaling") && config.value("rope_parameters") != config.value("rope_scaling")) {
    config.fail("rope_scaling", "and rope_parameters are both given and differ");
  }
  ConfigReader rope = config.object(version5 ? "rope_parameters" : "rope_scaling");
  if (!rope.has("full_attention") && !rope.has("sliding_attention")) {
    if (version5 && family.chooses_local_theta) {
      config.fail("rope_parameters",
                  "has neither full_attention nor sliding_attention: transformers ignores its keys in a " +
                      family.name + ", which has a map for each");
    }
    return read_one(config, rope, shape);
  }

  if (!family.chooses_local_theta)
    rope.fail("full_attention", "is a map: a " + family.name + " has one for all layers");
  if (rope.has("full_attention")) {
    ConfigReader full = rope.object("full_attention");
    read_one(config, full, shape);
  }
  if (rope.has("sliding_attention")) {
    ConfigReader sliding = rope.object("sliding_attention");
    read_sliding(config, sliding, shape);
  }
  rope.ignore("full_attention");
  rope.ignore("sliding_attention");
  rope.refuse_others();
}

namespace {

/// Returns the keys of the scaling's type. Yarn's keys with transformers' defaults are left out, as some of its
/// versions do not know them.
nlohmann::ordered_json scaling_keys(const RopeScaling& scaling) {
  nlohmann::ordered_json keys = {{"rope_type", scaling.type}};
  if (scaling.type == "longrope") {
    keys["type"] = scaling.type;
    keys["short_factor"] = scaling.short_factor;
    keys["long_factor"] = scaling.long_factor;
    if (scaling.factor > 1) keys["factor"] = scaling.factor;
    if (scaling.attention_factor) keys["attention_factor"] = *scaling.attention_factor;
    return keys;
  }
  keys["factor"] = scaling.factor;
  if (scaling.type == "llama3") {
    keys["low_freq_factor"] = scaling.low_freq_factor;
    keys["high_freq_factor"] = scaling.high_freq_factor;
  }
  if (scaling.original_max_position_embeddings > 0) keys[kOriginal] = scaling.original_max_position_embeddings;
  if (scaling.type == "yarn") {
    keys["beta_fast"] = scaling.beta_fast;
    keys["beta_slow"] = scaling.beta_slow;
    if (scaling.attention_factor) keys["attention_factor"] = *scaling.attention_factor;
    if (scaling.mscale) keys["mscale"] = *scaling.mscale;
    if (scaling.mscale_all_dim) keys["mscale_all_dim"] = *scaling.mscale_all_dim;
    if (!scaling.truncate) keys["truncate"] = false;
  }
  return keys;
}

/// Returns true when only a map for each type of layers says both thetas: without maps versions of transformers give
/// sliding layers rope_theta or the family's own, and agree where these are one.
bool needs_two_maps(const ModelShape& shape) {
  const Family& family = family_of(shape);
  if (!family.chooses_local_theta || family.names_local_theta) return false;
  return shape.rope_theta != family.rope_theta || shape.rope_local_base_freq != family.rope_local_base_freq;
}

nlohmann::ordered_json two_maps(const ModelShape& shape) {
  nlohmann::ordered_json full = {{"rope_type", "default"}}, sliding = full;
  if (shape.rope_scaling) full = scaling_keys(*shape.rope_scaling);
  full["rope_theta"] = shape.rope_theta;
  sliding["rope_theta"] = shape.rope_local_base_freq;
  return {{"full_attention", full}, {"sliding_attention", sliding}};
}

}  // namespace

void write_rope(nlohmann::ordered_json& config, const ModelShape& shape) {
  const Family& family = family_of(shape);
  if (needs_two_maps(shape)) {
    config["rope_parameters"] = two_maps(shape);
    return;
  }
  config["rope_theta"] = shape.rope_theta;
  if (family.names_local_theta) config["rope_local_base_freq"] = shape.rope_local_base_freq;
  if (family.chooses_rotary_part) config[kPart] = shape.partial_rotary_factor;
  if (family.chooses_longrope) {
    const bool is_scaled = shape.rope_scaling && shape.rope_scaling->type == "longrope";
    config[kOriginal] =
        is_scaled ? shape.rope_scaling->original_max_position_embeddings : shape.max_position_embeddings;
  }
  config["rope_scaling"] = nullptr;
  if (family.rope_scaling) config["rope_scaling"] = {{"rope_type", "default"}};
  if (shape.rope_scaling) config["rope_scaling"] = scaling_keys(*shape.rope_scaling);
}

}  // namespace meshtrain

#include <toml++/toml.h>
#include <sstream>

#include "mesh/error.h"
#include "runtime/foreign/foreign_config.h"
#include "runtime/yaml/scalar_text.h"

namespace meshtrain {
namespace {

YamlLocation location_of(const toml::source_region& region, const std::shared_ptr<const YamlSource>& source) {
  return {source, static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
}

/// Returns a value of TOML as one of YAML.
YamlValue yaml_of(const toml::node& node, const std::shared_ptr<const YamlSource>& source) {
  YamlValue value;
  value.location = location_of(node.source(), source);
  if (const toml::table* table = node.as_table()) {
    value.kind = YamlValue::Kind::Map;
    for (const auto& [key, inner] : *table) {
      value.entries.push_back({std::string(key.str()), location_of(key.source(), source), yaml_of(inner, source)});
    }
  } else if (const toml::array* array = node.as_array()) {
    value.kind = YamlValue::Kind::List;
    for (const toml::node& inner : *array) value.items.push_back(yaml_of(inner, source));
  } else {
    value.kind = YamlValue::Kind::Scalar;
    if (const auto* text = node.as_string()) {
      value.text = text->get();
    } else if (const auto* number = node.as_floating_point()) {
      value.text = scalar_text(number->get());
    } else if (const auto* whole = node.as_integer()) {
      value.text = scalar_text(static_cast<int64_t>(whole->get()));
    } else if (const auto* truth = node.as_boolean()) {
      value.text = scalar_text(truth->get());
    } else {  // a date or a time
      std::ostringstream shown;
      node.visit([&](const auto& each) {
        if constexpr (toml::is_value<decltype(each)>) shown << each.get();
      });
      value.text = shown.str();
    }
  }
  return value;
}

}  // namespace

YamlValue parse_toml(const std::string& text, const std::shared_ptr<const YamlSource>& source) try {
  return yaml_of(toml::parse(text, source->name), source);
} catch (const toml::parse_error& error) {
  throw InputError(location_of(error.source(), source).text() +
                   ": not valid TOML: " + std::string(error.description()));
}

}  // namespace meshtrain

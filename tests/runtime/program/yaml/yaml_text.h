#pragma once

#include <memory>
#include <string>

#include "runtime/program/yaml/value.h"

namespace meshtrain::testing {

/// Returns the value of `text`, parsed as a file /recipes/r.yaml.
inline YamlValue yaml(const std::string& text) {
  auto source = std::make_shared<YamlSource>();
  source->name = "r.yaml";
  source->folder = "/recipes";
  return parse_yaml(text, source);
}

}  // namespace meshtrain::testing

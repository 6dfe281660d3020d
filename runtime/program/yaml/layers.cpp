#include "runtime/program/yaml/layers.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

YamlValue take(YamlValue& map, const std::string& key) {
  const auto entry =
      std::find_if(map.entries.begin(), map.entries.end(), [&](const YamlEntry& e) { return e.key == key; });
  if (entry == map.entries.end()) return {};
  YamlValue value = std::move(entry->value);
  map.entries.erase(entry);
  return value;
}

/// Reads `file` and the files that it extends, which `chain` must not have. `asked_by`: "recipes/x.yaml: " or, for a
/// file that another extends, the location of that key and the file.
YamlValue read_file(const fs::path& file, const std::string& asked_by, std::vector<fs::path> chain) {
  std::error_code ignored;
  fs::path canonical = fs::weakly_canonical(file, ignored);
  if (ignored) canonical = file;  // reading it will say why
  if (std::find(chain.begin(), chain.end(), canonical) != chain.end()) {
    throw InputError(asked_by + "extends itself, over " + counted(chain.size(), "file"));
  }
  chain.push_back(canonical);

  auto source = std::make_shared<YamlSource>();
  source->name = file.string();
  source->folder = fs::absolute(file).parent_path();
  YamlValue recipe = parse_yaml(read_short_file(file, asked_by), source);
  if (recipe.kind == YamlValue::Kind::Null) throw InputError(YamlLocation{source}.text() + ": an empty recipe");
  if (recipe.kind != YamlValue::Kind::Map) {
    throw InputError(recipe.location.text() + ": a recipe is a map of keys (model:, data:, train:, ...), not " +
                     recipe.shown());
  }
  recipe.location = {source};

  const YamlValue extends = take(recipe, "extends");
  if (extends.kind == YamlValue::Kind::Null) return recipe;
  if (extends.kind != YamlValue::Kind::Scalar || extends.text.empty() || has_control_characters(extends.text)) {
    throw InputError(extends.location.text() + ": extends: " + extends.shown() + " is not the path of a recipe");
  }
  const fs::path base_file = (file.parent_path() / extends.text).lexically_normal();
  YamlValue base = read_file(base_file, extends.location.text() + ": extends: " + base_file.string() + ": ", chain);
  take(base, "name");
  merge_yaml(base, std::move(recipe));
  base.location = {source};
  return base;
}

/// Returns "data.mixture.0.weight" for "data.mixture[0].weight".
std::string with_dots(const std::string& path) {
  std::string text;
  for (const char c : path) {
    if (c == '[') text += '.';
    if (c != '[' && c != ']') text += c;
  }
  return text;
}

}  // namespace

std::string read_short_file(const fs::path& file, const std::string& asked_by) {
  constexpr std::streamsize kEnough = (1 << 20) + 1;
  std::error_code ignored;
  if (fs::is_directory(file, ignored))
    throw InputError(asked_by + "is a folder: give the recipe in it, such as " + (file / "recipe.yaml").string());
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::string text(kEnough, '\0');
  if (stream) stream.read(text.data(), kEnough);
  if (!stream.is_open() || stream.bad()) {
    throw InputError(asked_by + (errno == 0 ? "cannot be read" : std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

YamlValue read_layers(const fs::path& file) {
  return read_file(file, file.string() + ": ", {});
}

std::string with_indices(const std::string& path) {
  std::string text;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool is_index = begin > 0 && !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    text += is_index ? "[" + part + "]" : (begin > 0 ? "." : "") + part;
    begin = end + 1;
  }
  return text;
}

YamlValue override_layer(const std::string& text, const KnownKeys& keys) {
  auto source = std::make_shared<YamlSource>();
  source->name = "--set " + text;
  std::replace_if(
      source->name.begin(), source->name.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  source->is_file = false;
  source->folder = fs::current_path();
  const size_t equals = text.find('=');
  const std::string path = keys.complete(with_indices(text.substr(0, equals)));
  source->option_key = path;
  const YamlLocation location{source};
  const std::string dotted = with_dots(path);
  if (equals == std::string::npos || dotted.empty() || dotted.front() == '.' || dotted.back() == '.' ||
      dotted.find("..") != std::string::npos || has_control_characters(dotted)) {
    throw InputError("--set " + quoted(text) + ": give KEY=VALUE, as in --set train.steps=20");
  }
  if (path == "extends") throw InputError(location.text() + ": only a file extends another one");

  YamlValue value = parse_yaml(text.substr(equals + 1), source);
  const KnownKey* key = keys.find(path);
  const bool is_shorthand = key != nullptr && !key->shorthand.empty() && value.kind == YamlValue::Kind::Scalar;
  if (is_shorthand) source->option_key += "." + key->shorthand;
  return layer_of(dotted + (is_shorthand ? "." + key->shorthand : ""), std::move(value), location);
}

YamlValue layer_of(const std::string& path, YamlValue value, const YamlLocation& location) {
  YamlValue layer = std::move(value);
  for (size_t end = path.size(); end != std::string::npos;) {
    const size_t dot = path.rfind('.', end - 1);
    const size_t begin = dot == std::string::npos ? 0 : dot + 1;
    YamlValue outer;
    outer.kind = YamlValue::Kind::Map;
    outer.location = location;
    outer.entries.push_back({path.substr(begin, end - begin), location, std::move(layer)});
    layer = std::move(outer);
    end = dot;
  }
  return layer;
}

}  // namespace meshtrain

#include "runtime/program/foreign/conversion.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <string_view>

#include "mesh/base/files/lower_case.h"
#include "runtime/program/yaml/flat_keys.h"
#include "runtime/program/yaml/scalar_text.h"
#include "runtime/program/yaml/suggest.h"

namespace meshtrain {
namespace {

/// The maps of a recipe in the order of docs/recipe.md.
constexpr std::array<std::string_view, 9> kMaps = {"model", "adapter",   "parallel", "data",      "evaluate",
                                                   "train", "optimizer", "schedule", "checkpoint"};

bool is_on_text(const std::string& text) {
  return text == "true" || text == "True" || text == "yes" || text == "on";
}

bool does_nothing(const YamlValue& value) {
  const std::string text = lower_case(value.text);
  if (value.kind == YamlValue::Kind::List) return value.items.empty();
  if (value.kind == YamlValue::Kind::Map) return value.entries.empty();
  return value.kind == YamlValue::Kind::Null || text.empty() || text == "false" || text == "no" || text == "none";
}

/// Calls `visit` for each value that is no map, with its path.
template <class Visit>
void visit_leaves(const YamlValue& value, const std::string& path, const Visit& visit) {
  if (value.kind != YamlValue::Kind::Map) return visit(path, value);
  for (const YamlEntry& entry : value.entries) {
    visit_leaves(entry.value, path.empty() ? entry.key : path + "." + entry.key, visit);
  }
}

}  // namespace

const YamlValue* Conversion::find(const std::string& path) const {
  known_.insert(path);
  const YamlValue* at = &root_;
  for (size_t begin = 0; at != nullptr && begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    at = at->find(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return at == nullptr || at->kind == YamlValue::Kind::Null ? nullptr : at;
}

std::string Conversion::shown(const std::string& path) const {
  const YamlValue* value = find(path);
  return path + (value == nullptr ? "" : ": " + flat_text(*value));
}

const YamlValue* Conversion::take(const std::string& path, YamlValue::Kind kind) {
  const YamlValue* value = find(path);
  if (value == nullptr) return nullptr;
  if (value->kind != kind) {
    refuse(path, "its type is not the expected one");
    return nullptr;
  }
  if (is_auto(path)) return nullptr;
  read_.insert(path);
  return value;
}

std::optional<std::string> Conversion::word(const std::string& path) {
  const YamlValue* value = take(path, YamlValue::Kind::Scalar);
  return value == nullptr ? std::nullopt : std::optional(value->text);
}

std::optional<double> Conversion::number(const std::string& path) {
  std::optional<std::string> text = word(path);
  if (!text) return std::nullopt;
  std::erase(*text, '_');  // 500_000, as YAML of Python has it
  double value = 0;
  const auto [last, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error == std::errc() && last == text->data() + text->size()) return value;
  lost_.push_back(shown(path) + ": it is not a number");
  return std::nullopt;
}

std::optional<int64_t> Conversion::whole(const std::string& path) {
  const std::optional<double> value = number(path);
  if (!value || *value < -1e15 || *value > 1e15) return std::nullopt;
  return static_cast<int64_t>(*value);
}

std::optional<bool> Conversion::truth(const std::string& path) {
  const std::optional<std::string> text = word(path);
  if (!text) return std::nullopt;
  return is_on_text(*text);
}

std::vector<std::string> Conversion::list(const std::string& path) {
  std::vector<std::string> texts;
  const YamlValue* value = find(path);
  if (value != nullptr && value->kind == YamlValue::Kind::Scalar) {
    if (const std::optional<std::string> text = word(path)) texts.push_back(*text);
    return texts;
  }
  value = take(path, YamlValue::Kind::List);
  if (value == nullptr) return texts;
  for (const YamlValue& item : value->items) texts.push_back(item.text);
  return texts;
}

const YamlValue* Conversion::value(const std::string& path) {
  ignore(path);
  return find(path);
}

bool Conversion::is_on(const std::string& path) const {
  const YamlValue* value = find(path);
  return value != nullptr && is_on_text(value->text);
}

bool Conversion::is_auto(const std::string& path) const {
  const YamlValue* value = find(path);
  return value != nullptr && value->kind == YamlValue::Kind::Scalar && value->text == "auto";
}

void Conversion::set(const std::string& key, const std::string& value, const std::string& comment) {
  values_[key] = {value.starts_with('[') || value.starts_with('{') ? value : scalar_text(value), comment};
}

void Conversion::set(const std::string& key, double value, const std::string& comment) {
  values_[key] = {scalar_text(value), comment};
}

void Conversion::set(const std::string& key, int64_t value, const std::string& comment) {
  values_[key] = {scalar_text(value), comment};
}

void Conversion::set(const std::string& key, bool value, const std::string& comment) {
  values_[key] = {scalar_text(value), comment};
}

double Conversion::set_number(const std::string& path, const std::string& key, double usual) {
  const std::optional<double> value = number(path);
  set(key, value.value_or(usual), value ? "" : by_default());
  return value.value_or(usual);
}

void Conversion::add_line(const std::string& path, const std::string& reason, std::vector<std::string>& lines) {
  const YamlValue* value = find(path);
  if (value == nullptr) return;
  ignore(path);
  if (!does_nothing(*value)) lines.push_back(shown(path) + ": " + reason);
}

void Conversion::refuse(const std::string& path, const std::string& reason) {
  add_line(path, reason, lost_);
}

void Conversion::refuse_others(const std::string& reason) {
  visit_leaves(root_, "", [&](const std::string& path, const YamlValue&) {
    if (!read_.contains(path)) refuse(path, reason);
  });
}

void Conversion::leave_out(const std::string& path, const std::string& reason) {
  add_line(path, reason, left_out_);
}

void Conversion::ignore(const std::string& path) {
  const YamlValue* value = find(path);
  if (value == nullptr) return;
  visit_leaves(*value, path, [&](const std::string& leaf, const YamlValue&) { read_.insert(leaf); });
}

void Conversion::ignore_all(const std::string& paths, const std::string& prefix) {
  std::istringstream words(paths);
  for (std::string path; words >> path;) ignore(prefix + path);
}

void Conversion::need(const std::string& key, const std::string& what) {
  const bool is_listed = std::ranges::find(needed_, key, &NeededKey::key) != needed_.end();
  if (!is_set(key) && !is_listed) needed_.push_back({key, what});
}

void Conversion::need_filled_in(const std::string& key, std::initializer_list<const char*> paths,
                                const std::string& value, const std::string& by_default) {
  std::vector<std::string> open;
  for (const char* path : paths) {
    if (!is_auto(path)) continue;
    open.push_back(path);
    ignore(path);
  }
  if (open.empty()) return;
  const std::string meanwhile = is_set(key) ? values_.at(key).text : by_default;
  needed_.push_back({key, joined(open) + (open.size() == 1 ? " is" : " are") + " auto: give " + value +
                              (meanwhile.empty() ? "" : "; until then the recipe has " + meanwhile)});
}

void Conversion::offload_to_host() {
  set("parallel.fsdp.offload.to", std::string("host"), "in host memory next to a GPU; no effect on CPU ranks");
}

void Conversion::need_of_script(const std::string& in_script) {
  need("model.hf", in_script + "the folder of the model");
  set("data.layout", std::string("stream"), "of meshtrain data prepare --text");
  need("data.tokens", in_script + "its texts, as meshtrain data prepare writes them");
  need("train.sequence_length", in_script + "the length of its samples");
}

/// Returns `; did you mean scheduler.type?` when an unread `path` is spelt like a key of the tool that the
/// configuration lacks. The key may be in the same map, or in a map with a similar name.
std::string Conversion::near(const std::string& path) const {
  const auto map_of = [](const std::string& key) { return key.substr(0, key.rfind('.') + 1); };
  const auto name_of = [](const std::string& key) { return key.substr(key.rfind('.') + 1); };
  const std::string map = map_of(path), name = name_of(path), dashes = name.starts_with("--") ? "--" : "";
  std::vector<std::string> siblings, maps;
  for (const std::string& key : known_) {
    const bool is_given = find(key) != nullptr;
    if (map_of(key) == map && !is_given) siblings.push_back(name_of(key).substr(dashes.size()));
    if (name_of(key) == name && key != path && !is_given) maps.push_back(map_of(key));
  }
  if (const std::string sibling = nearest(name.substr(dashes.size()), siblings); !sibling.empty()) {
    return "; did you mean " + map + dashes + sibling + "?";
  }
  const std::string other = nearest(map, maps);
  return other.empty() ? "" : "; did you mean " + other + name + "?";
}

ConvertedRecipe Conversion::recipe(const std::string& file) const {
  std::string text = "# From " + file + ", a configuration of " + tool_ + ".\n";
  const auto write = [&](const std::string& map) {
    std::vector<std::string> open;  // the maps whose line was written
    for (const auto& [key, value] : values_) {
      if (!key.starts_with(map + ".")) continue;
      std::vector<std::string> parts;
      for (size_t begin = 0; begin <= key.size();) {
        const size_t end = std::min(key.find('.', begin), key.size());
        parts.push_back(key.substr(begin, end - begin));
        begin = end + 1;
      }
      size_t same = 0;
      while (same < open.size() && same + 1 < parts.size() && open[same] == parts[same]) ++same;
      open.resize(same);
      for (; same + 1 < parts.size(); ++same) {
        text += std::string(2 * same, ' ') + parts[same] + ":\n";
        open.push_back(parts[same]);
      }
      text += std::string(2 * same, ' ') + parts.back() + ": " + value.text +
              (value.comment.empty() ? "" : "  # " + value.comment) + "\n";
    }
  };
  for (const std::string_view map : kMaps) write(std::string(map));
  for (const auto& [key, value] : values_) {
    if (key.find('.') == std::string::npos) text += key + ": " + value.text + "\n";
  }
  std::vector<std::string> lost = lost_;
  visit_leaves(root_, "", [&](const std::string& path, const YamlValue& value) {
    if (read_.contains(path) || does_nothing(value)) return;
    lost.push_back(path + ": " + flat_text(value) +
                   (is_auto(path) ? ": another program sets it" : ": a recipe has no such setting" + near(path)));
  });
  const auto add = [&](const std::string& title, const std::vector<std::string>& lines) {
    if (!lines.empty()) text += "\n# " + title + ":\n";
    for (const std::string& line : lines) text += "#   " + line + "\n";
  };
  std::vector<std::string> needed;
  for (const auto& [key, what] : needed_) needed.push_back(key + ": " + what);
  add("Still to be given, here or with --set", needed);
  add("Not converted, and numbers change without it", lost);
  add("Not converted, and no number changes", left_out_);
  return {text, static_cast<int64_t>(lost.size())};
}

}  // namespace meshtrain

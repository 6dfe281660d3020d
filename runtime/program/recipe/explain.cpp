#include "runtime/program/recipe/explain.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/files/lower_case.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/yaml/known_keys.h"
#include "runtime/program/yaml/layers.h"
#include "runtime/program/yaml/scalar_text.h"
#include "runtime/program/yaml/suggest.h"

namespace meshtrain {
namespace {

/// The text of docs/recipe.md; the build writes it (CMakeLists.txt).
constexpr const char* kDocument =
#include <recipe_document.inc>
    ;

struct Row {
  std::vector<std::string> keys;  // complete paths
  std::string default_value, text;
};

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

/// Returns the heading of docs/recipe.md that "#packed-documents" leads to: "Packed documents".
std::string heading_of(const std::string& target) {
  std::string name = target.substr(1);
  std::ranges::replace(name, '-', ' ');
  std::istringstream document(kDocument);
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("## ") && lower_case(line.substr(3)) == name) return line.substr(3);
  }
  return name;
}

/// Returns Markdown as plain text: without marks, "[data.md](data.md)" as "docs/data.md", "[below](#precision)" as
/// `docs/recipe.md, "Precision"`.
std::string plain(const std::string& markdown) {
  std::string text;
  for (size_t at = 0; at < markdown.size(); ++at) {
    const size_t middle = markdown[at] == '[' ? markdown.find("](", at) : std::string::npos;
    const size_t end = middle == std::string::npos ? std::string::npos : markdown.find(')', middle);
    if (end != std::string::npos && markdown.find(']', at) == middle) {
      const std::string shown = markdown.substr(at + 1, middle - at - 1);
      const std::string target = markdown.substr(middle + 2, end - middle - 2);
      const std::string file = "docs/" + target.substr(0, target.find('#'));
      const bool is_here = target.starts_with('#');
      const std::string location = is_here ? "docs/recipe.md, \"" + heading_of(target) + "\"" : file;
      text += shown.ends_with(".md") || shown == "below" ? location : shown + " (" + location + ")";
      at = end;
    } else if (markdown.compare(at, 2, "**") == 0) {
      ++at;
    } else if (markdown[at] == '\\' && at + 1 < markdown.size() && markdown[at + 1] == '|') {
      continue;
    } else if (markdown[at] != '`') {
      text += markdown[at];
    }
  }
  return trimmed(text);
}

/// Returns the words in backticks: "optimizer.betas", "eps", "weight_decay".
std::vector<std::string> marked_words(const std::string& cell) {
  std::vector<std::string> words;
  for (size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at + 1)) {
    const size_t end = cell.find('`', at + 1);
    if (end == std::string::npos) break;
    words.push_back(cell.substr(at + 1, end - at - 1));
    at = end;
  }
  return words;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t begin = 1; begin < line.size();) {
    size_t end = line.find('|', begin);
    while (end != std::string::npos && line[end - 1] == '\\') end = line.find('|', end + 1);
    end = std::min(end, line.size());
    cells.push_back(trimmed(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return cells;
}

/// Returns the rows of the tables with a column of keys. A key without its map stands in the map of the key before it
/// in its cell, or in that of its section.
std::vector<Row> read_rows() {
  const std::map<std::string, std::string> maps = {{"## Shapes", "model."},
                                                   {"## Rotary scaling", "model.rope_scaling."},
                                                   {"## Precision", "train.loss_scale."},
                                                   {"## Single parameters", "optimizer.groups."}};
  std::vector<Row> rows;
  std::istringstream document(kDocument);
  std::string prefix;
  bool has_families = false, is_table = false;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("## ")) prefix = maps.contains(line) ? maps.at(line) : "";
    if (!line.starts_with('|')) {
      is_table = false;
      continue;
    }
    const std::vector<std::string> cells = cells_of(line);
    if (cells[0] == "key") is_table = true, has_families = cells.size() > 3;
    if (!is_table || cells.size() < 3 || cells[0] == "key") continue;
    std::string before = prefix;
    Row row;
    for (const std::string& word : marked_words(cells[0])) {
      const std::string path = recipe_keys().find(word) != nullptr ? word : before + word;
      if (recipe_keys().find(path) == nullptr) continue;
      row.keys.push_back(path);
      before = path.substr(0, path.rfind('.') + 1);
    }
    const size_t at = has_families ? 2 : 1;
    row.default_value = plain(cells[at]);
    row.text = plain(cells.back());
    if (has_families && cells.size() > 3) {
      row.text = plain(cells[3]) + (cells[1] == "all" ? "" : " It is a key of " + plain(cells[1]) + ".");
    }
    if (!row.keys.empty()) rows.push_back(std::move(row));
  }
  return rows;
}

/// Returns the default of the `index`-th of several keys of a row: "0.9, 1e-8" may be one each, and "those of data" is
/// that of data.dtype for evaluate.dtype.
std::string default_of(const Row& row, size_t index) {
  if (row.keys.size() == 1) return row.default_value;
  if (const std::string those = "those of "; row.default_value.starts_with(those)) {
    const std::string& key = row.keys[index];
    return "that of " + row.default_value.substr(those.size()) + key.substr(key.rfind('.'));
  }
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (const char c : row.default_value) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0) {
      parts.push_back(trimmed(part));
      part.clear();
    } else {
      part += c;
    }
  }
  parts.push_back(trimmed(part));
  return parts.size() == row.keys.size() ? parts[index] : row.default_value;
}

std::string bounds_of(const Rule& rule) {
  std::string text;
  const auto add = [&](const char* word, const std::optional<double>& bound) {
    if (bound && *bound < 2147483647)
      text += (text.empty() ? "" : ", ") + std::string(word) + " " + scalar_text(*bound);
  };
  add("at least", rule.least);
  add("above", rule.above);
  add("at most", rule.most);
  add("below", rule.below);
  return text;
}

std::string wrapped(const std::string& text, const std::string& indent) {
  constexpr size_t kWidth = 100;
  std::istringstream words(text);
  std::string lines, line = indent;
  for (std::string word; words >> word;) {
    if (line.size() > indent.size() && line.size() + 1 + word.size() > kWidth) {
      lines += line + "\n";
      line = indent;
    }
    line += (line.size() > indent.size() ? " " : "") + word;
  }
  return lines + line + "\n";
}

/// Returns "needed", "default: auto" or "default: none"; empty for maps, which have their keys' defaults, and for keys
/// of which the document speaks with their map alone.
std::string default_line(const KnownKey& key, const KeyText& about) {
  if (about.default_value.starts_with("needed")) return about.default_value;
  if (!about.default_value.empty()) return "default: " + about.default_value;
  if (key.rule.required) return "needed";
  return about.own && key.kind.find("map") == std::string::npos ? "default: none" : "";
}

/// Returns the lines of words and bounds. Those of a list hold for each of its items, those of a map of sizes for its
/// keys and for each size.
std::string demands_of(const KnownKey& key) {
  const bool is_list = key.kind.starts_with("a list"), is_map = key.kind == "a map of sizes";
  const std::string words = is_map ? "keys: " : is_list ? "each one of: " : "one of: ";
  std::string text, bounds = bounds_of(key.rule);
  if (!key.rule.choices.empty()) text += wrapped(words + joined(key.rule.choices), "  ");
  if (!key.rule.minus_one.empty()) bounds += (bounds.empty() ? "" : ", ") + ("or the word " + key.rule.minus_one);
  if (!bounds.empty()) text += "  " + std::string(is_map ? "each size " : is_list ? "each " : "") + bounds + "\n";
  return text;
}

/// Returns what the document says of a key, without the words that may stand there: they are a line of their own.
std::string text_without_choices(const KnownKey& key, const std::string& text) {
  std::string words;
  for (const std::string& word : key.rule.choices) words += (words.empty() ? "" : " ") + word;
  if (words.empty() || !text.starts_with(words)) return text;
  const std::string rest = text.substr(words.size());
  return rest.empty() ? "" : rest.starts_with(": ") ? rest.substr(2) : text;
}

/// Returns the line of a key in a list of them: path, kind, default.
std::string line_of(const KnownKey& key) {
  const KeyText about = text_of_key(key.path);
  const std::string word = about.own ? about.default_value : "";
  std::string text = key.path + std::string(key.path.size() < 44 ? 44 - key.path.size() : 1, ' ') + key.kind;
  if (!word.empty()) text += ", " + (word.starts_with("needed") ? word : "default " + word);
  return text + "\n";
}

/// Returns "; here ..." or the keys that `asked`, which is none, may have been meant for.
std::string answer_to(const std::string& asked) {
  constexpr size_t kMost = 8;
  const KnownKeys& keys = recipe_keys();
  const size_t dot = asked.rfind('.');
  const std::string map = dot == std::string::npos ? "" : asked.substr(0, dot);
  const std::string name = lower_case(dot == std::string::npos ? asked : asked.substr(dot + 1));
  if (const ForeignAnswer foreign = keys.foreign_word(map, name)) return foreign.here();
  std::vector<std::string> near;  // those of that name, or that have it in theirs
  for (const KnownKey& key : keys.all()) {
    const std::string of_key = key.path.substr(key.path.rfind('.') + 1);
    const bool is_near = name.size() > 2 && of_key.find(name) != std::string::npos;
    if (is_near) near.insert(of_key == name ? near.begin() : near.end(), key.path);
  }
  if (near.size() > kMost) near.resize(kMost);
  if (near.size() > 1) return "; similar keys: " + joined(near);
  const std::string meant = keys.suggestion(map, name);
  return meant.empty() ? "; meshtrain recipe --explain lists all keys" : meant;
}

/// Returns the outermost key with the name `asked`; empty when there is none, or more than one at that depth.
std::string outermost_key(const std::string& asked) {
  std::string found;
  auto fewest = std::string::npos;
  for (const KnownKey& key : recipe_keys().all()) {
    if (!key.path.ends_with("." + asked)) continue;
    const auto depth = static_cast<size_t>(std::ranges::count(key.path, '.'));
    if (depth > fewest) continue;
    found = depth == fewest ? "" : key.path;
    fewest = depth;
  }
  return found;
}

/// Returns the key that `asked`, a word of another system, is here; empty when a sentence answers it.
std::string key_meant_by(const std::string& asked) {
  const KnownKeys& keys = recipe_keys();
  const size_t dot = asked.rfind('.');
  const ForeignAnswer answer = keys.foreign_word(dot == std::string::npos ? "" : asked.substr(0, dot),
                                                 asked.substr(dot == std::string::npos ? 0 : dot + 1));
  const bool is_key = answer.kind == ForeignAnswer::Kind::Name && keys.find(answer.text) != nullptr;
  return is_key ? answer.text : "";
}

}  // namespace

KeyText text_of_key(const std::string& path) {
  static const std::vector<Row> rows = read_rows();
  const std::string mixture = "data.mixture.", of_evaluate = "evaluate.";
  const std::string of_data = "data." + path.substr(path.rfind('.') + 1);
  for (const Row& row : rows) {
    const auto found = std::find(row.keys.begin(), row.keys.end(), path);
    if (found != row.keys.end()) {
      const std::string value = default_of(row, static_cast<size_t>(found - row.keys.begin()));
      return {value, row.keys.size() > 1 && path.starts_with(of_evaluate) ? text_of_key(of_data).text : row.text, true};
    }
  }
  if (path.starts_with(mixture)) {
    KeyText text = text_of_key(of_data);
    if (text.default_value.starts_with("needed")) text.default_value = "needed";  // in each entry
    return text;
  }
  if (path.starts_with(of_evaluate)) return text_of_key(of_data);
  const size_t dot = path.rfind('.');
  const KeyText around = dot == std::string::npos ? KeyText() : text_of_key(path.substr(0, dot));
  return {"", around.text, false};
}

std::string explain_key(const std::string& asked) {
  const KnownKeys& keys = recipe_keys();
  const KnownKey* key = keys.find(keys.complete(with_indices(asked)));
  if (key == nullptr) {
    const std::string meant = key_meant_by(asked);
    if (!meant.empty()) return asked + " is called " + meant + " here\n" + explain_key(meant);
  }
  if (key == nullptr) key = keys.find(outermost_key(asked));
  if (key == nullptr) throw InputError("--explain " + asked + ": unknown key" + answer_to(asked));
  const KeyText about = text_of_key(key->path);
  std::string text = key->path + ": " + key->kind + "\n";
  if (const std::string line = default_line(*key, about); !line.empty()) text += wrapped(line, "  ");
  text += demands_of(*key);
  if (!key->shorthand.empty()) text += "  a single value sets its " + key->shorthand + "\n";
  if (const std::string meaning = text_without_choices(*key, about.text); !meaning.empty()) {
    text += wrapped(meaning, "  ");
  }
  std::string inner;
  for (const KnownKey& other : keys.all()) {
    if (other.path.starts_with(key->path + ".")) inner += "    " + line_of(other);
  }
  if (!inner.empty()) text += "  keys in it:\n" + inner;
  return text;
}

std::string list_keys() {
  std::string text;
  for (const KnownKey& key : recipe_keys().all()) text += line_of(key);
  return text;
}

}  // namespace meshtrain

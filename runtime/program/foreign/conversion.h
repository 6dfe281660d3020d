#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/yaml/value.h"

namespace meshtrain {

/// The configuration of another trainer on its way to a recipe: what was taken from it, and what was not.
class Conversion {
 public:
  /// `tool`: its name and version, for messages. `root`: a map, which must outlive this.
  Conversion(std::string tool, const YamlValue& root) : tool_(std::move(tool)), root_(root) {}

  /// Return the value at `path` ("optimizer.params.lr") and mark it as read; none when it is absent, null or of another
  /// kind, which is listed as not converted, or "auto", which need_filled_in() reads.
  std::optional<std::string> word(const std::string& path);
  std::optional<double> number(const std::string& path);
  std::optional<int64_t> whole(const std::string& path);
  std::optional<bool> truth(const std::string& path);
  std::vector<std::string> list(const std::string& path);
  /// Returns the value at `path` as it stands there, and marks all in it as read; null when it is absent.
  const YamlValue* value(const std::string& path);
  bool has(const std::string& path) const { return find(path) != nullptr; }
  /// Returns true when the value at `path` is true, without marking it.
  bool is_on(const std::string& path) const;
  /// Returns true when the value at `path` is the word auto, without marking it.
  bool is_auto(const std::string& path) const;

  /// Sets the recipe's `key`. `comment`: why, when the value does not stand in the configuration.
  void set(const std::string& key, const std::string& value, const std::string& comment = "");
  void set(const std::string& key, double value, const std::string& comment = "");
  void set(const std::string& key, int64_t value, const std::string& comment = "");
  void set(const std::string& key, bool value, const std::string& comment = "");
  bool is_set(const std::string& key) const { return values_.contains(key); }
  /// Returns the comment of a value that the configuration leaves to the tool.
  std::string by_default() const { return "the default of " + tool_; }
  /// Sets `key` to the number at `path`, or else to `usual`, the tool's default, with a comment. Returns the value.
  double set_number(const std::string& path, const std::string& key, double usual);

  /// Lists `path` as not converted though it changes numbers. Does nothing when `path` is absent, false, none or empty.
  void refuse(const std::string& path, const std::string& reason);
  /// Calls refuse() for each value that nothing has read so far.
  void refuse_others(const std::string& reason);
  /// Lists a default of the tool as not converted though it changes numbers.
  void refuse_absent(const std::string& line) { lost_.push_back(line); }
  /// Lists `path`, like refuse(), as not converted; for a setting that changes no number of the training.
  void leave_out(const std::string& path, const std::string& reason);
  /// Marks `path`, a value or all in a map, as meaning nothing in a recipe.
  void ignore(const std::string& path);
  /// Calls ignore() for each of `paths`, which are separated by blanks, with `prefix` before it.
  void ignore_all(const std::string& paths, const std::string& prefix = "");
  /// Lists the recipe's `key`, unless it is set or listed, as still to be given.
  void need(const std::string& key, const std::string& what);
  /// Lists the recipe's `key` as still to be given where values at `paths` are "auto", and marks those as read.
  /// `value`: what another program would fill in. `by_default`: what the recipe has while neither the key is set nor
  /// given; empty: nothing.
  void need_filled_in(const std::string& key, std::initializer_list<const char*> paths, const std::string& value,
                      const std::string& by_default = "");

  /// Sets parallel.fsdp.offload.to: host, and says of which ranks it is.
  void offload_to_host();
  /// Lists model, data and the length of samples, which the script that a launcher starts has. `in_script`: the
  /// beginning of the lines.
  void need_of_script(const std::string& in_script);

  /// Returns the recipe: its keys, those still to be given, and the settings that were not converted. `file`: the name
  /// of the configuration.
  ConvertedRecipe recipe(const std::string& file) const;

 private:
  struct Value {
    std::string text, comment;
  };
  struct NeededKey {
    std::string key, what;
  };
  const YamlValue* find(const std::string& path) const;
  std::string near(const std::string& path) const;
  const YamlValue* take(const std::string& path, YamlValue::Kind kind);
  std::string shown(const std::string& path) const;
  void add_line(const std::string& path, const std::string& reason, std::vector<std::string>& lines);

  std::string tool_;
  const YamlValue& root_;
  std::map<std::string, Value> values_;
  std::set<std::string> read_;
  mutable std::set<std::string> known_;       // the paths that were asked for, also absent ones
  std::vector<std::string> lost_, left_out_;  // settings not converted: those that change numbers; others
  std::vector<NeededKey> needed_;
};

}  // namespace meshtrain

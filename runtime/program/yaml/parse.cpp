#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <map>
#include <sstream>
#include <utility>

#include "mesh/base/error.h"
#include "runtime/program/yaml/value.h"

namespace meshtrain {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxValues = 100'000;             // aliases of aliases multiply,
constexpr size_t kMaxTextBytes = size_t{4} << 20;  // as do the texts that they stand for
constexpr size_t kMaxBytes = size_t{1} << 20;      // of a source

[[noreturn]] void refuse(const YamlLocation& location, const std::string& what) {
  throw InputError(location.text() + ": " + what);
}

struct Size {
  size_t values = 0;
  size_t bytes = 0;  // of texts and keys
};

void add_size(const YamlValue& value, Size& size) {
  ++size.values;
  size.bytes += value.text.size();
  for (const YamlValue& item : value.items) add_size(item, size);
  for (const YamlEntry& entry : value.entries) {
    size.bytes += entry.key.size();
    add_size(entry.value, size);
  }
}

/// Builds the tree from the parser's events. yaml-cpp's own nodes keep no file, and let duplicate keys pass.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::shared_ptr<const YamlSource> source) : source_(std::move(source)) {}

  YamlValue take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) refuse(location(mark), "a second document begins here: a recipe must be one document");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(value(YamlValue::Kind::Null, mark), anchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    YamlValue scalar = value(YamlValue::Kind::Scalar, mark);
    scalar.text = text;
    scalar.quoted = tag == "!" || tag == "tag:yaml.org,2002:str";
    if (!scalar.quoted) check_tag(mark, tag, {"int", "float", "bool"});
    add(std::move(scalar), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto target = anchored_.find(anchor);
    if (target == anchored_.end()) refuse(location(mark), "an alias inside the value that it stands for");
    add_size(target->second, size_);
    check_size(location(mark));
    YamlValue copy = target->second;
    copy.location = location(mark);
    put(std::move(copy));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check_tag(mark, tag, {"seq"});
    open(value(YamlValue::Kind::List, mark), anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check_tag(mark, tag, {"map"});
    open(value(YamlValue::Kind::Map, mark), anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  /// A list or a map whose end was not read yet.
  struct OpenNode {
    YamlValue value;
    YAML::anchor_t anchor = 0;
    bool has_key = false;  // map: a key has been read, its value is next
    std::string key;
    YamlLocation key_location;
  };

  YamlLocation location(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1}; }

  YamlValue value(YamlValue::Kind kind, const YAML::Mark& mark) const {
    YamlValue made;
    made.kind = kind;
    made.location = location(mark);
    return made;
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag, std::initializer_list<const char*> known) const {
    if (tag.empty() || tag == "?" || tag == "!") return;
    for (const char* name : known) {
      if (tag == std::string("tag:yaml.org,2002:") + name) return;
    }
    refuse(location(mark), "the tag " + quoted(tag) + " is not supported: remove it");
  }

  void open(YamlValue value, YAML::anchor_t anchor) {
    if (open_.size() >= kMaxDepth) refuse(value.location, "nested too deeply for a recipe");
    if (expects_key()) refuse(value.location, "a key must be a word, not " + value.shown());
    open_.push_back({std::move(value), anchor, false, {}, {}});
  }

  void close() {
    OpenNode closed = std::move(open_.back());
    open_.pop_back();
    add(std::move(closed.value), closed.anchor);
  }

  bool expects_key() const {
    return !open_.empty() && open_.back().value.kind == YamlValue::Kind::Map && !open_.back().has_key;
  }

  void add(YamlValue value, YAML::anchor_t anchor) {
    ++size_.values;
    size_.bytes += value.text.size();
    check_size(value.location);
    if (anchor != 0) anchored_[anchor] = value;
    put(std::move(value));
  }

  void put(YamlValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (expects_key()) {
      take_key(value);
    } else if (OpenNode& parent = open_.back(); parent.value.kind == YamlValue::Kind::Map) {
      parent.value.entries.push_back({std::move(parent.key), std::move(parent.key_location), std::move(value)});
      parent.has_key = false;
    } else {
      parent.value.items.push_back(std::move(value));
    }
  }

  void check_size(const YamlLocation& at) const {
    if (size_.values > kMaxValues) refuse(at, "too many values for a recipe");
    if (size_.bytes > kMaxTextBytes) refuse(at, "the aliases stand for more than 4 MiB of text: this is not a recipe");
  }

  /// Returns "train.steps" for a key of the map that is being read.
  std::string path_of(const std::string& key) const {
    std::string path;
    for (const OpenNode& open : open_) {
      if (open.has_key) path += open.key + ".";
    }
    return path + key;
  }

  void take_key(const YamlValue& key) {
    if (key.kind != YamlValue::Kind::Scalar || key.text.empty()) {
      refuse(key.location, "a key must be a word, not " + key.shown());
    }
    if (has_control_characters(key.text)) refuse(key.location, key.shown() + " is not a key");
    OpenNode& map = open_.back();
    for (const YamlEntry& entry : map.value.entries) {
      if (entry.key != key.text) continue;
      refuse(key.location, path_of(key.text) + ": appears twice, first in line " + std::to_string(entry.location.line) +
                               ": remove one");
    }
    map.has_key = true;
    map.key = key.text;
    map.key_location = key.location;
  }

  std::shared_ptr<const YamlSource> source_;
  int documents_ = 0;
  Size size_;
  YamlValue root_;
  std::vector<OpenNode> open_;
  std::map<YAML::anchor_t, YamlValue> anchored_;
};

void check_is_text(const std::string& text, const YamlLocation& full) {
  if (text.size() > kMaxBytes) refuse(full, "more than 1 MiB: this is not a recipe");
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if ((byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t') || byte == 0x7f) {
      refuse(full, "not a text file");
    }
  }
}

/// Refuses a line near `line`, from 1, that a tab indents.
void refuse_tab(const std::string& text, int line, const std::shared_ptr<const YamlSource>& source) {
  int at = 1;
  for (size_t begin = 0; begin < text.size() && at <= line + 1; ++at) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const size_t first = std::min(text.find_first_not_of(' ', begin), end);
    if (at + 1 >= line && first < end && text[first] == '\t') {
      refuse({source, at, static_cast<int>(first - begin) + 1},
             "not valid YAML: a tab indents this line: indent with spaces");
    }
    begin = end + 1;
  }
}

}  // namespace

YamlValue parse_yaml(const std::string& text, const std::shared_ptr<const YamlSource>& source) {
  check_is_text(text, {source});
  TreeBuilder builder(source);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    const YamlLocation location =
        error.mark.is_null() ? YamlLocation{source} : YamlLocation{source, error.mark.line + 1, error.mark.column + 1};
    if (!error.mark.is_null()) refuse_tab(text, error.mark.line + 1, source);
    refuse(location, "not valid YAML: " + error.msg);
  }
  YamlValue root = builder.take();
  if (!root.location.source) root.location = {source};
  return root;
}

}  // namespace meshtrain

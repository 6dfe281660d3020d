#include "runtime/training/data/token_sidecar.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "mesh/base/error.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/json_object.h"
#include "runtime/training/data/token_file.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "meshtrain tokens";
constexpr int64_t kVersion = 1;
constexpr const char* kReplacing = "replacing";
constexpr int64_t kMostBytes = int64_t{1} << 20;

bool is_taken(const fs::path& file) {
  std::error_code error;
  return fs::symlink_status(file, error).type() != fs::file_type::not_found;
}

constexpr const char* kAdvice = ": data prepare does not write this; prepare the tokens again, or remove the file";

/// Returns the object in NAME.json; std::nullopt when there is none. Throws InputError for what cannot be parsed: a
/// sidecar that was cut short is no sign that there is none.
std::optional<json> find_object(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return std::nullopt;
  const FileReader reader(file);
  if (reader.size() > kMostBytes) return std::nullopt;
  const FileBytes bytes = reader.read(0, reader.size());
  const json document = json::parse(bytes.text(), nullptr, /*allow_exceptions=*/false);
  if (!document.is_discarded() && !document.is_object()) return std::nullopt;
  return parse_json_object(file.string(), bytes.text());
}

bool is_sidecar(const json& object) {
  const auto format = object.find("format");
  return format != object.end() && *format == kFormat;
}

class SidecarFields {
 public:
  SidecarFields(fs::path file, const json& object) : file_(std::move(file)), object_(object) {}

  int64_t number(const char* key) const {
    const json& value = at(key);
    if (!value.is_number_integer() || value < 0) fail(key, "is not a whole number of at least 0");
    return value.get<int64_t>();
  }
  std::optional<int64_t> number_or_null(const char* key) const {
    return at(key).is_null() ? std::nullopt : std::optional(number(key));
  }
  std::optional<int64_t> number_or_missing(const char* key) const {
    return object_.contains(key) ? std::optional(number(key)) : std::nullopt;
  }
  std::string text_or_empty(const char* key) const { return object_.contains(key) ? text(key) : ""; }
  std::string text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string()) fail(key, "is not a string");
    return value.get<std::string>();
  }
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw InputError(file_.string() + ": \"" + key + "\" " + what + kAdvice);
  }

 private:
  const json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(key, "is missing");
    return *found;
  }

  fs::path file_;
  const json& object_;
};

std::string text_of(const TokenSidecar& sidecar) {
  nlohmann::ordered_json object = {
      {"format", kFormat},
      {"version", kVersion},
      {"dtype", sidecar.dtype},
      {"tokens", sidecar.tokens},
      {"layout", name(sidecar.layout)},
      {"separator", sidecar.separator ? nlohmann::ordered_json(*sidecar.separator) : nlohmann::ordered_json(nullptr)},
      {"vocabulary_size", sidecar.vocabulary_size},
      {"tokenizer", sidecar.tokenizer},
      {"tokenizer_checksum", sidecar.tokenizer_checksum},
      {"command", sidecar.command}};
  if (sidecar.text_bytes) object["text_bytes"] = *sidecar.text_bytes;
  if (!sidecar.index.empty()) object["index"] = sidecar.index;
  if (!sidecar.loss_mask.empty()) object["loss_mask"] = sidecar.loss_mask;
  if (sidecar.sequence_length) object["sequence_length"] = *sidecar.sequence_length;
  if (sidecar.samples) object["samples"] = *sidecar.samples;
  return object.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

/// Returns find_object(), with advice where it throws.
std::optional<json> object_of(const fs::path& file) try { return find_object(file); } catch (const InputError& error) {
  throw InputError(std::string(error.what()) + kAdvice);
}

}  // namespace

int64_t TokenSidecar::num_bytes() const {
  return tokens * token_width(dtype == "int32" ? "uint32" : dtype);
}

fs::path sidecar_path(const fs::path& tokens) {
  fs::path file = tokens;
  file += ".json";
  return file;
}

std::optional<TokenSidecar> read_sidecar(const fs::path& tokens) {
  const fs::path file = sidecar_path(tokens);
  std::error_code missing;
  const std::optional<json> object = fs::is_regular_file(tokens, missing) ? object_of(file) : std::nullopt;
  if (!object) return std::nullopt;
  const SidecarFields reader(file, *object);
  if (!object->contains("format")) reader.fail("format", "is missing");
  if (!is_sidecar(*object)) return std::nullopt;
  if (object->contains(kReplacing)) {
    throw InputError(file.string() + ": data prepare was interrupted while it replaced " + tokens.string() +
                     ": prepare the tokens again");
  }
  if (const int64_t version = reader.number("version"); version != kVersion) {
    reader.fail("version", "is " + std::to_string(version) + ", but only version 1 is supported");
  }
  const std::string layout = reader.text("layout");
  const TokenSidecar sidecar{
      .dtype = reader.text("dtype"),
      .tokens = reader.number("tokens"),
      .text_bytes = reader.number_or_missing("text_bytes"),
      .layout = layout == name(SampleLayout::Stream) ? SampleLayout::Stream : SampleLayout::Records,
      .separator = reader.number_or_null("separator"),
      .vocabulary_size = reader.number("vocabulary_size"),
      .tokenizer = reader.text("tokenizer"),
      .tokenizer_checksum = reader.text("tokenizer_checksum"),
      .command = reader.text("command"),
      .index = reader.text_or_empty("index"),
      .loss_mask = reader.text_or_empty("loss_mask"),
      .sequence_length = reader.number_or_missing("sequence_length"),
      .samples = reader.number_or_missing("samples")};
  const bool is_known = sidecar.dtype == "uint8" || sidecar.dtype == "uint16" || sidecar.dtype == "uint32";
  if (!is_known && (sidecar.index.empty() || sidecar.dtype != "int32")) {
    reader.fail("dtype", "is not one of uint8, uint16, uint32");
  }
  if (layout != name(sidecar.layout)) {
    reader.fail("layout", "is neither records nor stream");
  }
  return sidecar;
}

void check_sidecar_path(const fs::path& tokens) {
  const fs::path file = sidecar_path(tokens);
  if (!is_taken(file)) return;
  const std::string remedy = ": name another --out, or move that file out of the way";
  try {
    const std::optional<json> object = fs::is_regular_file(fs::symlink_status(file)) ? find_object(file) : std::nullopt;
    if (object && is_sidecar(*object)) return;
  } catch (const InputError& error) {
    throw InputError(std::string(error.what()) + remedy);
  }
  throw InputError("data prepare describes " + tokens.string() + " in " + file.string() +
                   ", but that is a file of another kind" + remedy);
}

SidecarReplacement::SidecarReplacement(const fs::path& tokens, const TokenSidecar& sidecar)
    : sidecar_(sidecar_path(tokens)), marker_(sidecar_), file_(sidecar_) {
  const std::string text = text_of(sidecar);
  file_.append(text.data(), text.size());
  file_.sync();
  marker_ += ".replacing";
  write_atomically(marker_, json{{"format", kFormat}, {kReplacing, true}}.dump() + "\n");
}

SidecarReplacement::~SidecarReplacement() {
  std::error_code ignored;
  fs::remove(marker_, ignored);
}

void SidecarReplacement::begin() {
  std::error_code error;
  fs::rename(marker_, sidecar_, error);
  if (error) throw std::runtime_error("cannot replace " + sidecar_.string() + ": " + error.message());
  sync_folder(sidecar_.parent_path());
}

void SidecarReplacement::finish() {
  file_.finish();
}

void write_sidecar(const fs::path& tokens, const TokenSidecar& sidecar) {
  write_atomically(sidecar_path(tokens), text_of(sidecar));
}

}  // namespace meshtrain

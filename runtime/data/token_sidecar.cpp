#include "runtime/data/token_sidecar.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "mesh/error.h"
#include "runtime/data/token_file.h"
#include "runtime/files/file_reader.h"
#include "runtime/files/json_object.h"
#include "runtime/files/output_file.h"

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

/// Returns the object in NAME.json; std::nullopt when it is no sidecar.
std::optional<json> find_object(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return std::nullopt;
  const FileReader reader(file);
  if (reader.size() > kMostBytes) return std::nullopt;
  const FileBytes bytes = reader.read(0, reader.size());
  // Arrays and scalars are another program's; of what cannot be parsed nobody knows whose it is.
  const json document = json::parse(bytes.text(), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded() && bytes.text().find(kFormat) == std::string_view::npos) return std::nullopt;
  if (!document.is_discarded() && !document.is_object()) return std::nullopt;
  json object = parse_json_object(file.string(), bytes.text());
  const auto format = object.find("format");
  if (format == object.end() || *format != kFormat) return std::nullopt;
  return object;
}

class SidecarFields {
 public:
  SidecarFields(fs::path file, const json& object) : file_(std::move(file)), object_(object) {}

  int64_t number(const char* key) const {
    const json& value = at(key);
    if (!value.is_number_integer() || value < 0) fail(key, "is not a number from 0 on");
    return value.get<int64_t>();
  }
  std::optional<int64_t> number_or_null(const char* key) const {
    return at(key).is_null() ? std::nullopt : std::optional(number(key));
  }
  std::optional<int64_t> number_or_missing(const char* key) const {
    return object_.contains(key) ? std::optional(number(key)) : std::nullopt;
  }
  std::string text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string()) fail(key, "is not a text");
    return value.get<std::string>();
  }
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw InputError(file_.string() + ": \"" + key + "\" " + what +
                     ": data prepare did not write it so; prepare the tokens again, or remove the file");
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
      {"layout", sidecar.layout},
      {"separator", sidecar.separator ? nlohmann::ordered_json(*sidecar.separator) : nlohmann::ordered_json(nullptr)},
      {"vocabulary_size", sidecar.vocabulary_size},
      {"tokenizer", sidecar.tokenizer},
      {"tokenizer_checksum", sidecar.tokenizer_checksum},
      {"command", sidecar.command}};
  if (sidecar.text_bytes) object["text_bytes"] = *sidecar.text_bytes;
  return object.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace

fs::path sidecar_path(const fs::path& tokens) {
  fs::path file = tokens;
  file += ".json";
  return file;
}

std::optional<TokenSidecar> read_sidecar(const fs::path& tokens) {
  const fs::path file = sidecar_path(tokens);
  const std::optional<json> object = find_object(file);
  if (!object) return std::nullopt;
  const SidecarFields reader(file, *object);
  if (object->contains(kReplacing)) {
    throw InputError(file.string() + ": data prepare was ended while it replaced " + tokens.string() +
                     ": prepare the tokens again");
  }
  if (const int64_t version = reader.number("version"); version != kVersion) {
    reader.fail("version", "is " + std::to_string(version) + ", and 1 is the one that is known here");
  }
  const TokenSidecar sidecar{.dtype = reader.text("dtype"),
                             .tokens = reader.number("tokens"),
                             .text_bytes = reader.number_or_missing("text_bytes"),
                             .layout = reader.text("layout"),
                             .separator = reader.number_or_null("separator"),
                             .vocabulary_size = reader.number("vocabulary_size"),
                             .tokenizer = reader.text("tokenizer"),
                             .tokenizer_checksum = reader.text("tokenizer_checksum"),
                             .command = reader.text("command")};
  if (sidecar.dtype != "uint8" && sidecar.dtype != "uint16" && sidecar.dtype != "uint32") {
    reader.fail("dtype", "is none of uint8, uint16, uint32");
  }
  if (sidecar.layout != "records" && sidecar.layout != "stream") {
    reader.fail("layout", "is neither records nor stream");
  }
  return sidecar;
}

void check_sidecar_place(const fs::path& tokens) {
  const fs::path file = sidecar_path(tokens);
  if (!is_taken(file)) return;
  const std::string remedy = ": name another --out, or move that file out of the way";
  try {
    if (fs::is_regular_file(fs::symlink_status(file)) && find_object(file)) return;
  } catch (const InputError& error) {
    throw InputError(std::string(error.what()) + remedy);
  }
  throw InputError("data prepare describes " + tokens.string() + " in " + file.string() +
                   ", but that is a file of another kind" + remedy);
}

SidecarReplacement::SidecarReplacement(const fs::path& tokens, const std::optional<TokenSidecar>& sidecar)
    : sidecar_(sidecar_path(tokens)) {
  if (!sidecar && !is_taken(sidecar_)) return;
  marker_ = sidecar_;
  marker_ += ".replacing";
  write_whole(marker_, json{{"format", kFormat}, {kReplacing, true}}.dump() + "\n");
  if (!sidecar) return;
  const std::string text = text_of(*sidecar);
  file_.emplace(sidecar_);
  file_->append(text.data(), text.size());
  file_->sync();
}

SidecarReplacement::~SidecarReplacement() {
  std::error_code ignored;
  if (!marker_.empty()) fs::remove(marker_, ignored);
}

void SidecarReplacement::begin() {
  if (marker_.empty()) return;
  std::error_code error;
  fs::rename(marker_, sidecar_, error);
  if (error) throw std::runtime_error("cannot replace " + sidecar_.string() + ": " + error.message());
  sync_folder(sidecar_.parent_path());
}

void SidecarReplacement::finish() {
  if (file_) return file_->finish();
  if (marker_.empty()) return;
  std::error_code error;
  fs::remove(sidecar_, error);
  if (error) throw std::runtime_error("cannot remove " + sidecar_.string() + ": " + error.message());
}

void write_sidecar(const fs::path& tokens, const TokenSidecar& sidecar) {
  write_whole(sidecar_path(tokens), text_of(sidecar));
}

}  // namespace meshtrain

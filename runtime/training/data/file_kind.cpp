#include "runtime/training/data/file_kind.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "mesh/base/error.h"
#include "mesh/base/files/content.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/json_lines.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/training/data/megatron_index.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kLookedAt = int64_t{1} << 16;
constexpr size_t kLeastText = 64;  // bytes of text that ids are not by chance
constexpr size_t kCertainText = size_t{4} << 10;

constexpr const char* kPrepareText = "make tokens from it with meshtrain data prepare --text ";

/// Returns what to do with content that is not token ids.
std::string advice_on(Content content, const std::string& file) {
  switch (content) {
    case Content::Html:
    case Content::ServerError:
      return "download the file again, instead of " + file;
    case Content::Gzip:
    case Content::Zstd:
      return "if it holds text, make tokens from it with meshtrain data prepare --text or --chat, else decompress it "
             "first: " +
             file;
    case Content::Bzip2:
    case Content::Xz:
      return "decompress it first: " + file;
    case Content::Parquet:
      return kPrepareText + file;
    case Content::Numpy:
      return "write only the ids, with NumPy's tofile(), instead of " + file;
    case Content::MegatronIndex:
      return "give the NAME.bin next to it instead of " + file;
    default:
      return "give a file of token ids, as meshtrain data prepare writes it, instead of " + file;
  }
}

/// Returns true for the header of gzip: its magic, its one method, no reserved flag, and a level and a system that
/// exist. The magic alone are two ids.
bool begins_as_gzip(std::string_view bytes) {
  if (bytes.size() < 18 || !bytes.starts_with("\x1F\x8B\x08")) return false;
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(bytes[at]); };
  return byte(3) < 32 && (byte(8) == 0 || byte(8) == 2 || byte(8) == 4) && (byte(9) < 14 || byte(9) == 255);
}

/// Returns true when the bytes are text: UTF-8 but for a character that the end may cut, without control characters.
bool is_text(std::string_view bytes) {
  if (bytes.size() - valid_utf8(bytes) > 3) return false;
  return std::ranges::none_of(bytes, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == 127 || (byte < 32 && c != '\t' && c != '\n' && c != '\r' && c != '\f');
  });
}

/// Returns true for text of so many bytes, with spaces and line ends as text has them, that no ids are such by chance.
bool is_certain_text(std::string_view text) {
  const auto spaces = static_cast<size_t>(std::ranges::count(text, ' '));
  const bool has_words = spaces >= text.size() / 50 && spaces <= text.size() / 2;
  return text.size() >= kCertainText && has_words && text.find('\n') != std::string_view::npos;
}

/// Returns true for a list of messages on a line.
bool are_messages(const json& line) {
  return line.is_array() && !line.empty() && line[0].is_object() && line[0].contains("role");
}

bool is_conversation(const json& object) {
  return object.contains("messages") || object.contains("conversations") || object.contains("completion");
}

/// Returns what text that begins as JSON is; std::nullopt when it does not.
std::optional<FileKind> kind_of_json(std::string_view text, const std::string& file) {
  const size_t begin = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin);
  const json line = first_json_line(text);
  if (text[0] == '{' && text.find("\"added_tokens\"") != std::string_view::npos) {
    return FileKind{"the JSON of a tokenizer",
                    "use it as data.tokenizer, and give a file of token ids instead of " + file, true};
  }
  if (line.is_object() || are_messages(line)) {
    const char* const option = are_messages(line) || is_conversation(line) ? "--chat " : "--text ";
    return FileKind{"JSON Lines text", std::string("make tokens from it with meshtrain data prepare ") + option + file,
                    true};
  }
  // A value that goes on in the next lines, or one that is longer than what was looked at.
  const size_t next = std::min(text.find_first_not_of(" \t\r\n", 1), text.size());
  const bool has_key = text[0] == '{' && text.substr(next).starts_with('"');
  const bool has_element = text[0] == '[' && (text.substr(next).starts_with('{') || text.substr(next).starts_with('"'));
  if (!has_key && !has_element) return std::nullopt;
  return FileKind{"JSON text",
                  "make lines of it, " + json_lines_command(text, file) +
                      ", and tokens of these with meshtrain data prepare --text or --chat",
                  true};
}

std::optional<FileKind> kind_of(std::string_view bytes, const std::string& file) {
  const Content content = content_of(bytes);
  const bool can_be_ids = content == Content::Unknown || content == Content::Empty || content == Content::Zeros ||
                          (content == Content::Gzip && !begins_as_gzip(bytes));
  if (!can_be_ids) return FileKind{std::string(name(content)), advice_on(content, file), true};
  if (bytes.size() < kLeastText || !is_text(bytes)) return std::nullopt;
  if (auto kind = kind_of_json(bytes, file)) return kind;
  return FileKind{"text", kPrepareText + file, is_certain_text(bytes)};
}

}  // namespace

std::optional<FileKind> kind_of_no_tokens(const fs::path& file, const std::string& dtype) {
  std::error_code ignored;
  if (dtype == "uint8" || !fs::is_regular_file(file, ignored) || MegatronIndex::is_beside(file)) return std::nullopt;
  try {
    const FileReader reader(file);
    return kind_of(reader.read(0, std::min(reader.size(), kLookedAt)).text(), file.string());
  } catch (const InputError&) {  // the file that opens it says so
    return std::nullopt;
  }
}

std::string describe_no_tokens(const fs::path& file, const std::string& dtype) {
  std::error_code ignored;
  const bool is_described = fs::exists(sidecar_path(file), ignored);
  const std::optional<FileKind> kind = is_described ? std::nullopt : kind_of_no_tokens(file, dtype);
  return kind ? ": it looks like " + kind->name + ", not token ids: " + kind->advice : "";
}

}  // namespace meshtrain

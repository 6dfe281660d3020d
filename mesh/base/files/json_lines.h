#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

/// Returns true when `file` is JSON lines. The name decides for *.jsonl and *.ndjson, in capitals too, also when the
/// ending of a compression (compression_of()) follows. For *.json and names without an ending the content decides: the
/// first line must be an object or an array, and another one must follow, or the first must have one of `keys`. Throws
/// InputError when the file cannot be read.
bool is_json_lines(const std::filesystem::path& file, const std::vector<std::string>& keys);

/// Returns the value in the first line of `text`; a discarded value when the line is not JSON, or is nested deeper than
/// any sample.
nlohmann::json first_json_line(std::string_view text);

/// Returns the command that writes a JSON document as lines: "jq -c '.[]' FILE > FILE.jsonl" of an array. `beginning`:
/// the first bytes of the document. Returns an empty text when it begins neither an object nor an array.
std::string json_lines_command(std::string_view beginning, const std::filesystem::path& file);

}  // namespace meshtrain

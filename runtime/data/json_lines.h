#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

/// Returns true when each line of `file` holds a JSON value. Its name says so: *.jsonl or *.ndjson, in capitals too,
/// and these followed by the ending of a compression (compression_of()). Where the name is *.json or has no ending, its
/// beginning tells: the first line is an object or an array, and another one follows, or the first has one of `keys`.
/// Throws InputError when it cannot be read.
bool is_json_lines(const std::filesystem::path& file, const std::vector<std::string>& keys);

/// Returns the value in the first line of `text`; a discarded value when it is none, or nested deeper than any sample.
nlohmann::json first_json_line(std::string_view text);

/// Returns the command that writes a JSON document as lines: "jq -c '.[]' FILE > FILE.jsonl" of an array. `beginning`:
/// the first bytes of the document. Returns an empty text where it does not begin as an object or a list does.
std::string json_lines_command(std::string_view beginning, const std::filesystem::path& file);

}  // namespace meshtrain

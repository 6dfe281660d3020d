#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace meshtrain {

/// Parses `text`, a JSON object. Throws InputError, "SUBJECT is not valid JSON: ...", when it is not one, and when its
/// values are nested deeper than in any file that we support: code that copies or prints them recurses as deep, and
/// would overflow the stack. `callback`: that of json::parse.
nlohmann::json parse_json_object(const std::string& subject, std::string_view text,
                                 const nlohmann::json::parser_callback_t& callback = nullptr);

/// Throws InputError, "SUBJECT is not read: ...", for JSON whose values are nested that deeply.
void refuse_deep_json(const std::string& subject, std::string_view text);

/// Replaces each escape of half a surrogate pair in `text`, JSON, by that of U+FFFD: "\ud83d " by "\ufffd ". Python
/// writes such escapes, and the parser refuses them. Returns their number.
size_t replace_lone_surrogates(std::string& text);

/// Returns what is wrong without the library's own prefix: "line 3, column 9: syntax error while parsing value ...".
std::string reason_of(const nlohmann::json::exception& error);

/// Reads and parses a file. Throws InputError as parse_json_object() does, and when the file cannot be read.
nlohmann::json read_json_object(const std::string& file);

}  // namespace meshtrain

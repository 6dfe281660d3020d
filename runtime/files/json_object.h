#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace meshtrain {

/// The JSON object that `text` is. Throws InputError, "SUBJECT is not valid JSON: ...", when it is none, or when its
/// values lie in each other deeper than any that is written for us: what copies or shows them goes down as deep.
/// `callback`: as json::parse has it.
nlohmann::json parse_json_object(const std::string& subject, std::string_view text,
                                 const nlohmann::json::parser_callback_t& callback = nullptr);

/// "line 3, column 9: syntax error while parsing value ...": what is wrong, without the library's own words around it.
std::string reason_of(const nlohmann::json::exception& error);

/// The same of a file. Throws InputError when it cannot be read, too.
nlohmann::json read_json_object(const std::string& file);

}  // namespace meshtrain

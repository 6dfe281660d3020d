#pragma once

#include <string>

namespace meshtrain {

/// Returns an explanation of the key at `path` of a recipe, in lines: its kind, default, words and bounds, and the text
/// of keys.md. For a map it also lists the keys in it. `path` may leave out its beginning and may name an entry
/// of a list, as in --set. For a word of another program it explains the key with that meaning, after a line that says
/// so. Throws InputError for any other unknown key, with the keys that may have been meant.
std::string explain_key(const std::string& path);

/// Returns all keys of a recipe, a line each: path, kind, default.
std::string list_keys();

/// Returns the row of keys.md about `path`, without Markdown: that of the key itself, or of the map that it is
/// in. `own`: whether the row names the key.
struct KeyText {
  std::string default_value;  ///< "bf16", "**needed**" is "needed"; empty: none, or not its own row
  std::string text;
  bool own = false;
};
KeyText text_of_key(const std::string& path);

}  // namespace meshtrain

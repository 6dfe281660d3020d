#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// What the `tokenizers` package knows of code points (unicode_data.py asks it).
namespace meshtrain {

/// General categories: the bit of one is 1 << category_of(code_point).
using CategoryMask = uint32_t;
constexpr size_t kCategories = 30;

/// The categories called `name`: one ("Lu") or a letter for a group of them ("L"). 0: there are none of that name.
CategoryMask categories_named(std::string_view name);

int category_of(uint32_t code_point);
/// White_Space: \s.
bool is_space(uint32_t code_point);
/// Rust's char::is_numeric.
bool is_numeric(uint32_t code_point);
/// \w of added tokens.
bool is_word(uint32_t code_point);

/// Canonical composition. `text` is valid UTF-8.
std::string nfc(std::string_view text);
/// Whether nfc() would give the text back; cheap. False may be said of a text that is composed.
bool is_surely_nfc(std::string_view text);

}  // namespace meshtrain

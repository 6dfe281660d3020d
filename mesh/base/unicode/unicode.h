#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// Properties of code points as the `tokenizers` package has them; unicode_data.py queries it.
namespace meshtrain {

/// A set of general categories: the bit of one is 1 << category_of(code_point).
using CategoryMask = uint32_t;
constexpr size_t kCategories = 30;

/// Returns the categories called `name`: one ("Lu"), or the group of a letter ("L"). 0 when there are none of that
/// name.
CategoryMask categories_named(std::string_view name);

int category_of(uint32_t code_point);
/// Returns true for White_Space: \s.
bool is_space(uint32_t code_point);
/// Returns true where Rust's char::is_numeric does.
bool is_numeric(uint32_t code_point);
/// Returns true for \w of added tokens.
bool is_word(uint32_t code_point);

/// Returns true when the package's Punctuation cuts at the code point.
bool is_punctuation(uint32_t code_point);

/// The normal forms of Unicode (UAX #15).
enum class NormalForm { Nfc, Nfd, Nfkc, Nfkd };
/// Returns `text`, valid UTF-8, in a normal form.
std::string normal_form(NormalForm form, std::string_view text);

/// Returns true only if NFC would not change `text`; cheap. May return false for a text that is composed.
bool is_surely_nfc(std::string_view text);

}  // namespace meshtrain

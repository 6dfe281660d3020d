#include "mesh/base/unicode/unicode.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "mesh/base/unicode/unicode_tables.h"
#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

constexpr uint8_t kCategory = 0x1F, kNumeric = 0x20, kWord = 0x40, kSpace = 0x80;
constexpr std::array<std::string_view, kCategories> kNames = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

uint8_t class_of(uint32_t code_point) {
  static const std::unique_ptr<uint8_t[]> classes = expand_class_runs();
  return classes[code_point];
}

constexpr uint8_t kCombining = 1, kNonspacing = 2, kCleaned = 4, kCleanedToSpace = 8, kIdeograph = 16,
                  kPunctuation = 32;

bool has_trait(uint32_t code_point, uint8_t trait) {
  static const std::unique_ptr<uint8_t[]> traits = expand_trait_runs();
  return (traits[code_point] & trait) != 0;
}

}  // namespace

CategoryMask categories_named(std::string_view name) {
  CategoryMask mask = 0;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name || (name.size() == 1 && kNames[i][0] == name[0])) mask |= CategoryMask{1} << i;
  }
  return mask;
}

int category_of(uint32_t code_point) {
  return class_of(code_point) & kCategory;
}

bool is_space(uint32_t code_point) {
  return (class_of(code_point) & kSpace) != 0;
}

bool is_numeric(uint32_t code_point) {
  return (class_of(code_point) & kNumeric) != 0;
}

bool is_word(uint32_t code_point) {
  return (class_of(code_point) & kWord) != 0;
}

bool is_combining_mark(uint32_t code_point) {
  return has_trait(code_point, kCombining);
}

bool is_nonspacing_mark(uint32_t code_point) {
  return has_trait(code_point, kNonspacing);
}

bool is_ideograph(uint32_t code_point) {
  return has_trait(code_point, kIdeograph);
}

bool is_cleaned_away(uint32_t code_point) {
  return has_trait(code_point, kCleaned);
}

bool is_cleaned_to_space(uint32_t code_point) {
  return has_trait(code_point, kCleanedToSpace);
}

bool is_punctuation(uint32_t code_point) {
  return has_trait(code_point, kPunctuation);
}

void append_lowercase(uint32_t code_point, std::string& text) {
  constexpr uint32_t kCapitalIWithDot = 0x130;  // the only one with two characters
  if (code_point == kCapitalIWithDot) {
    text += "i\u0307";
    return;
  }
  const std::span<const SmallLetter> letters = small_letters();
  const auto found = std::ranges::lower_bound(letters, code_point, {}, &SmallLetter::capital);
  append_utf8(found != letters.end() && found->capital == code_point ? found->small : code_point, text);
}

}  // namespace meshtrain

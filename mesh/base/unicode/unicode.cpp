#include "mesh/base/unicode/unicode.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "mesh/base/unicode/unicode_tables.h"
#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

constexpr uint8_t kCategory = 0x1F, kNumeric = 0x20, kWord = 0x40, kSpaceBit = 0x80;
constexpr std::array<std::string_view, kCategories> kNames = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

uint8_t class_of(uint32_t code_point) {
  static const std::unique_ptr<uint8_t[]> classes = expand_class_runs();
  return classes[code_point];
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
  return (class_of(code_point) & kSpaceBit) != 0;
}

bool is_numeric(uint32_t code_point) {
  return (class_of(code_point) & kNumeric) != 0;
}

bool is_word(uint32_t code_point) {
  return (class_of(code_point) & kWord) != 0;
}

bool is_punctuation(uint32_t code_point) {
  static const std::unique_ptr<uint8_t[]> punctuation = expand_punctuation_runs();
  return punctuation[code_point] != 0;
}

}  // namespace meshtrain

#include "tests/tokenizer/mixed_texts.h"

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "mesh/base/unicode/utf8.h"

namespace meshtrain::testing {
namespace {

constexpr size_t kTexts = 200, kCharacters = 5000;
constexpr uint32_t kLatinWords = 20;  // so many kinds of 20 + the number of ranges
constexpr std::string_view kLetters = "etaoinshrdlucmf";
constexpr std::array<std::u32string_view, 8> kSpaces = {U"\t",     U"\u00a0", U"\u2003", U"\u3000",
                                                        U"\u200b", U"\r\n",   U"\x85",   U"\u2028"};
constexpr std::array<std::pair<uint32_t, uint32_t>, 43> kRanges = {
    {{0x41, 0x5a},       {0x30, 0x39},     {0x21, 0x2f},       {0x3a, 0x40},       {0xa1, 0xff},
     {0x100, 0x24f},     {0x250, 0x2af},   {0x300, 0x36f},     {0x370, 0x3ff},     {0x400, 0x52f},
     {0x531, 0x5f4},     {0x600, 0x6ff},   {0x900, 0x97f},     {0x980, 0x9ff},     {0xe01, 0xe5b},
     {0x1000, 0x109f},   {0x10a0, 0x10ff}, {0x1100, 0x11ff},   {0x13a0, 0x13f5},   {0x1780, 0x17ff},
     {0x1e00, 0x1fff},   {0x2000, 0x206f}, {0x2070, 0x209f},   {0x20a0, 0x214f},   {0x2150, 0x218b},
     {0x2190, 0x22ff},   {0x2460, 0x24ff}, {0x2500, 0x27bf},   {0x3040, 0x30ff},   {0x3130, 0x318e},
     {0x3200, 0x33ff},   {0x4e00, 0x9fff}, {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfb00, 0xfb4f},
     {0xfe20, 0xfe6f},   {0xff01, 0xffee}, {0x1d400, 0x1d7ff}, {0x1f100, 0x1f64f}, {0x20000, 0x2a6df},
     {0x2f800, 0x2fa1d}, {0, 0xd7ff},      {0xe000, 0x10ffff}}};

class Random {
 public:
  uint32_t below(uint32_t n) {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<uint32_t>((state_ >> 33) % n);
  }

 private:
  uint64_t state_ = 1;
};

std::string mixed_text(Random& random) {
  std::u32string text;
  while (text.size() < kCharacters) {
    const uint32_t kind = random.below(static_cast<uint32_t>(kRanges.size()) + kLatinWords);
    if (kind < kLatinWords) {
      for (uint32_t left = 1 + random.below(8); left > 0; --left) {
        text += static_cast<char32_t>(kLetters[random.below(static_cast<uint32_t>(kLetters.size()))]);
      }
    } else {
      const auto [first, last] = kRanges[kind - kLatinWords];
      for (uint32_t left = 1 + random.below(6); left > 0; --left) text += first + random.below(last - first + 1);
    }
    const uint32_t end = random.below(10);
    if (end <= 5) text += end < 5 ? U" " : U"  ";
    if (end == 6) text += U"\n";
    if (end == 7) text += kSpaces[random.below(static_cast<uint32_t>(kSpaces.size()))];
  }
  std::string bytes;
  for (const char32_t c : text.substr(0, kCharacters)) append_utf8(c, bytes);
  return bytes;
}

}  // namespace

std::vector<std::string> mixed_texts() {
  Random random;
  std::vector<std::string> texts;
  for (size_t i = 0; i < kTexts; ++i) texts.push_back(mixed_text(random));
  return texts;
}

}  // namespace meshtrain::testing

#include <algorithm>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "mesh/base/unicode/unicode.h"
#include "mesh/base/unicode/unicode_tables.h"
#include "mesh/base/unicode/utf8.h"

// The algorithm of Unicode Standard Annex 15; Hangul as in the standard, section 3.12.
namespace meshtrain {
namespace {

constexpr uint32_t kSyllable = 0xAC00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11A7;
constexpr uint32_t kLeadings = 19, kVowels = 21, kTrailings = 28, kSyllables = kLeadings * kVowels * kTrailings;

class Tables {
 public:
  Tables() : combining_(expand_combining_runs()), changing_(std::make_unique<bool[]>(kCodePoints)) {
    for (const Decomposition& d : decompositions()) {
      parts_.emplace(d.code_point, d);
      if (!d.composed) changing_[d.code_point] = true;
      if (!d.composed || d.second == 0) continue;
      composed_.emplace(uint64_t{d.first} << 32 | d.second, d.code_point);
      changing_[d.second] = true;
    }
    const std::span<const uint32_t> compatible = compatibility_decompositions();
    for (size_t i = 0; i < compatible.size(); i += 2 + compatible[i + 1]) {
      compatible_.emplace(compatible[i], compatible.subspan(i + 2, compatible[i + 1]));
    }
    std::fill_n(changing_.get() + kVowel, kVowels, true);
    std::fill_n(changing_.get() + kTrailing + 1, kTrailings - 1, true);
  }

  uint8_t combining(uint32_t c) const { return combining_[c]; }
  /// Returns true when NFC changes `c`, or may compose it with the character before it.
  bool changing(uint32_t c) const { return changing_[c]; }

  /// Appends the canonical decomposition of `c`, or the compatibility decomposition.
  void decompose(uint32_t c, std::vector<uint32_t>& out, bool compatible = false) const {
    if (compatible) {
      const auto known = compatible_.find(c);
      if (known != compatible_.end()) {
        out.insert(out.end(), known->second.begin(), known->second.end());
        return;
      }
    }
    if (c >= kSyllable && c < kSyllable + kSyllables) {
      const uint32_t index = c - kSyllable;
      out.push_back(kLeading + index / (kVowels * kTrailings));
      out.push_back(kVowel + index / kTrailings % kVowels);
      if (index % kTrailings != 0) out.push_back(kTrailing + index % kTrailings);
      return;
    }
    const auto found = parts_.find(c);
    if (found == parts_.end()) return out.push_back(c);
    decompose(found->second.first, out);
    if (found->second.second != 0) decompose(found->second.second, out);
  }

  /// Returns the composition of two characters; 0 when there is none.
  uint32_t compose(uint32_t first, uint32_t second) const {
    if (first - kLeading < kLeadings && second - kVowel < kVowels) {
      return kSyllable + ((first - kLeading) * kVowels + (second - kVowel)) * kTrailings;
    }
    if (first - kSyllable < kSyllables && (first - kSyllable) % kTrailings == 0 &&
        second - kTrailing - 1 < kTrailings - 1) {
      return first + (second - kTrailing);
    }
    const auto found = composed_.find(uint64_t{first} << 32 | second);
    return found == composed_.end() ? 0 : found->second;
  }

 private:
  std::unique_ptr<uint8_t[]> combining_;
  std::unique_ptr<bool[]> changing_;
  std::unordered_map<uint32_t, Decomposition> parts_;
  std::unordered_map<uint32_t, std::span<const uint32_t>> compatible_;
  std::unordered_map<uint64_t, uint32_t> composed_;
};

const Tables& tables() {
  static const Tables all;
  return all;
}

void order_marks(std::vector<uint32_t>& points) {
  const auto combining = [](uint32_t c) { return tables().combining(c); };
  for (auto begin = points.begin(); begin != points.end();) {
    if (combining(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, points.end(), [&](uint32_t c) { return combining(c) == 0; });
    std::stable_sort(begin, end, [&](uint32_t a, uint32_t b) { return combining(a) < combining(b); });
    begin = end;
  }
}

void compose(std::vector<uint32_t>& points) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t starter = kNone, kept = 0;
  int last = -1;  // the class of the character between the starter and this one
  for (const uint32_t c : points) {
    const int combining = tables().combining(c);
    const uint32_t composed =
        starter != kNone && (last < combining || last == -1) ? tables().compose(points[starter], c) : 0;
    if (composed != 0) {
      points[starter] = composed;
      continue;
    }
    if (combining == 0) {
      starter = kept;
      last = -1;
    } else {
      last = combining;
    }
    points[kept++] = c;
  }
  points.resize(kept);
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  uint8_t last = 0;
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    if (static_cast<unsigned char>(*at) < 0x80) {
      ++at;
      last = 0;
      continue;
    }
    const uint32_t c = next_code_point(at);
    const uint8_t combining = tables().combining(c);
    if (tables().changing(c) || (combining != 0 && last > combining)) return false;
    last = combining;
  }
  return true;
}

std::string normal_form(NormalForm form, std::string_view text) {
  const bool is_ascii = std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (is_ascii) return std::string(text);
  const bool compatible = form == NormalForm::Nfkc || form == NormalForm::Nfkd;
  std::vector<uint32_t> points;
  points.reserve(text.size());
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    tables().decompose(next_code_point(at), points, compatible);
  }
  order_marks(points);
  if (form == NormalForm::Nfc || form == NormalForm::Nfkc) compose(points);
  std::string result;
  result.reserve(text.size());
  for (const uint32_t c : points) append_utf8(c, result);
  return result;
}

}  // namespace meshtrain

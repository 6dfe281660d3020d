#include "runtime/text/tokenizer/code_point_set.h"

#include "mesh/base/unicode/utf8.h"

namespace meshtrain {

CodePointSet::CodePointSet() : bits_(kCodePoints / 64) {}

void CodePointSet::add(uint32_t first, uint32_t last) {
  for (uint32_t c = first; c <= last; ++c) bits_[c >> 6] |= uint64_t{1} << (c & 63);
}

void CodePointSet::add(CategoryMask categories) {
  static const std::vector<CodePointSet> all = [] {
    std::vector<CodePointSet> sets(kCategories);
    for (uint32_t c = 0; c < kCodePoints; ++c) sets[static_cast<size_t>(category_of(c))].add(c, c);
    return sets;
  }();
  for (size_t i = 0; i < all.size(); ++i) {
    if ((categories >> i & 1) != 0) add(all[i]);
  }
}

void CodePointSet::add_spaces() {
  static const CodePointSet spaces = [] {
    CodePointSet set;
    for (uint32_t c = 0; c < kCodePoints; ++c) {
      if (is_space(c)) set.add(c, c);
    }
    return set;
  }();
  add(spaces);
}

void CodePointSet::add(const CodePointSet& other) {
  for (size_t i = 0; i < bits_.size(); ++i) bits_[i] |= other.bits_[i];
}

void CodePointSet::complement() {
  for (uint64_t& bits : bits_) bits = ~bits;
}

}  // namespace meshtrain

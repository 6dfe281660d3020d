#include "runtime/text/tokenizer/code_point_set.h"

#include <gtest/gtest.h>

#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

TEST(CodePointSet, HasTheEndsOfItsRanges) {
  CodePointSet set;
  set.add('a', 'c');
  set.add(63, 64);
  set.add(kCodePoints - 1, kCodePoints - 1);
  for (const uint32_t c : {uint32_t{'a'}, uint32_t{'c'}, 63u, 64u, kCodePoints - 1}) EXPECT_TRUE(set.has(c)) << c;
  for (const uint32_t c : {0u, uint32_t{'d'}, 62u, 65u}) EXPECT_FALSE(set.has(c)) << c;
}

TEST(CodePointSet, HasCategoriesAndSpaces) {
  CodePointSet set;
  set.add(categories_named("Lu") | categories_named("Nd"));
  EXPECT_TRUE(set.has('A') && set.has(0xC9) && set.has('7') && set.has(0x663));
  EXPECT_FALSE(set.has('a') || set.has(' '));
  set.add_spaces();
  EXPECT_TRUE(set.has(' ') && set.has(0x2003));
  EXPECT_FALSE(set.has(0x200B));
}

TEST(CodePointSet, ComplementsAndUnites) {
  CodePointSet letters, others;
  letters.add('a', 'z');
  others = letters;
  others.complement();
  EXPECT_FALSE(others.has('m'));
  EXPECT_TRUE(others.has('0') && others.has(kCodePoints - 1));
  others.add(letters);
  CodePointSet none;
  none.complement();
  EXPECT_TRUE(others == none) << "the complement of no code points has all of them";
}

}  // namespace
}  // namespace meshtrain

#include "mesh/base/files/shell_word.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>

namespace meshtrain {
namespace {

TEST(ShellWord, IsTheWordThatAShellReads) {
  for (const std::string word : {"runs/a-1_b.yaml", "dp=2,tp=2", "", "a b", "it's", "''", "$HOME", "a;b", "*", "~", "é",
                                 "line\nend", "\\", "`x`", "a\"b"}) {
    std::FILE* const shell = popen(("set -- " + shell_word(word) + "; printf '%s' \"$#$1\"").c_str(), "r");
    std::array<char, 100> text{};
    const size_t size = std::fread(text.data(), 1, text.size(), shell);
    EXPECT_EQ(pclose(shell), 0) << word;
    EXPECT_EQ(std::string(text.data(), size), "1" + word) << "one word";
  }
  EXPECT_EQ(shell_word("runs/a-1_b.yaml"), "runs/a-1_b.yaml") << "no needless quotes";
}

}  // namespace
}  // namespace meshtrain

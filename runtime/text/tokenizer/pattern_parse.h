#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer/code_point_set.h"

namespace meshtrain {

constexpr uint32_t kEndlessRepeats = std::numeric_limits<uint32_t>::max();
constexpr size_t kMostPatternSets = 256;

enum class PatternGreed { Greedy, Lazy, Possessive };

/// A node of an expression's syntax tree.
struct PatternNode {
  enum class Kind { Empty, Set, Sequence, Choice, Repeat, Ahead } kind = Kind::Empty;
  std::vector<PatternNode> children = {};
  int32_t set = -1;
  uint32_t min = 0, max = 0;
  PatternGreed greed = PatternGreed::Greedy;
  bool negated = false;
};

bool can_be_empty(const PatternNode& node);

/// Parses an expression, valid UTF-8, into a tree; adds its sets of code points to `sets`, each once. Throws InputError
/// as Pattern says.
PatternNode parse_pattern(std::string_view expression, std::vector<CodePointSet>& sets);

}  // namespace meshtrain

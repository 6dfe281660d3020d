#pragma once

#include <cstdint>
#include <vector>

#include "runtime/tokenizer/code_point_set.h"

namespace meshtrain {

/// An expression as instructions for a search with places to go back to.
struct PatternProgram {
  enum class Kind : uint8_t {
    One,     // a code point of `set`
    Loop,    // as many of `set` as there are, `min` to `max`; gives them back one by one
    Keep,    // the same; gives none back
    Split,   // goes on with the next instruction, and on failure at `target`; at once where the code point is not in
             // `set`
    Jump,    // to `target`
    Ahead,   // what follows, to its Accept, has to match here, or not where `negated`; goes on at `target`
    Atomic,  // what follows, to its Accept, is matched for good; goes on at `target`
    Accept,
  };
  struct Instruction {
    Kind kind = Kind::Accept;
    bool negated = false;
    int32_t set = -1;  // of `sets`; -1: any
    uint32_t target = 0;
    uint32_t min = 0, max = 0;
  };

  std::vector<Instruction> instructions;
  std::vector<CodePointSet> sets;
};

}  // namespace meshtrain

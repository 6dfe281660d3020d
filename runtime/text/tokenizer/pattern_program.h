#pragma once

#include <cstdint>
#include <vector>

#include "runtime/text/tokenizer/code_point_set.h"

namespace meshtrain {

/// An expression compiled to instructions for a search that backtracks.
struct PatternProgram {
  enum class Kind : uint8_t {
    One,     // matches one code point of `set`
    Loop,    // matches as many code points of `set` as possible, `min` to `max`; backtracks one by one
    Keep,    // as Loop, but never backtracks
    Split,   // continues with the next instruction, and on failure at `target`; at once if the code point is not in
             // `set`
    Jump,    // continues at `target`
    Ahead,   // the instructions to its Accept must match here, or must not if `negated`; continues at `target`
    Atomic,  // matches the instructions to its Accept, never to backtrack into them; continues at `target`
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

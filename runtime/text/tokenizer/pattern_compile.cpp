#include <algorithm>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/tokenizer/pattern.h"
#include "runtime/text/tokenizer/pattern_parse.h"
#include "runtime/text/tokenizer/pattern_program.h"

namespace meshtrain {
namespace {

constexpr size_t kLongest = 8192;  // bytes of an expression
constexpr size_t kMostInstructions = 20'000;

using Kind = PatternProgram::Kind;

class Compiler {
 public:
  explicit Compiler(PatternProgram& program) : program_(program) {}

  void emit(const PatternNode& node) {
    switch (node.kind) {
      case PatternNode::Kind::Empty:
        return;
      case PatternNode::Kind::Set:
        add({.kind = Kind::One, .set = node.set});
        return;
      case PatternNode::Kind::Sequence:
        for (const PatternNode& child : node.children) emit(child);
        return;
      case PatternNode::Kind::Choice:
        return emit_choice(node);
      case PatternNode::Kind::Repeat:
        return emit_repeat(node);
      case PatternNode::Kind::Ahead:
        return emit_enclosed({.kind = Kind::Ahead, .negated = node.negated}, node.children[0]);
    }
  }

  void finish() { add({.kind = Kind::Accept}); }

 private:
  uint32_t add(PatternProgram::Instruction instruction) {
    if (program_.instructions.size() == kMostInstructions) {
      throw InputError("the regular expression is too large: its counted repetitions expand to too many instructions");
    }
    program_.instructions.push_back(instruction);
    return here() - 1;
  }
  uint32_t here() const { return static_cast<uint32_t>(program_.instructions.size()); }
  void end_at(uint32_t instruction) { program_.instructions[instruction].target = here(); }

  void emit_enclosed(PatternProgram::Instruction opening, const PatternNode& node) {
    const uint32_t begin = add(opening);
    emit(node);
    add({.kind = Kind::Accept});
    end_at(begin);
  }

  void emit_choice(const PatternNode& node) {
    std::vector<uint32_t> ends;
    for (size_t i = 0; i + 1 < node.children.size(); ++i) {
      const uint32_t split = add({.kind = Kind::Split, .set = first_of(node.children[i])});
      emit(node.children[i]);
      ends.push_back(add({.kind = Kind::Jump}));
      end_at(split);
    }
    emit(node.children.back());
    for (const uint32_t end : ends) end_at(end);
  }

  void emit_repeat(const PatternNode& node) {
    const PatternNode& child = node.children[0];
    if (child.kind == PatternNode::Kind::Set && node.greed != PatternGreed::Lazy) {
      const Kind kind = node.greed == PatternGreed::Possessive ? Kind::Keep : Kind::Loop;
      add({.kind = kind, .set = child.set, .min = node.min, .max = node.max});
      return;
    }
    if (node.greed == PatternGreed::Possessive) {
      PatternNode greedy = node;
      greedy.greed = PatternGreed::Greedy;
      return emit_enclosed({.kind = Kind::Atomic}, greedy);
    }
    for (uint32_t i = 0; i < node.min; ++i) emit(child);
    std::vector<uint32_t> exits;
    const uint32_t optional = node.max == kEndlessRepeats ? 1 : node.max - node.min;
    const uint32_t begin = here();
    for (uint32_t i = 0; i < optional; ++i) {
      if (node.greed == PatternGreed::Greedy) {
        exits.push_back(add({.kind = Kind::Split, .set = first_of(child)}));
      } else {
        const uint32_t split = add({.kind = Kind::Split});
        exits.push_back(add({.kind = Kind::Jump}));
        end_at(split);
      }
      emit(child);
    }
    if (node.max == kEndlessRepeats) add({.kind = Kind::Jump, .target = begin});
    for (const uint32_t exit : exits) end_at(exit);
  }

  // Returns the index of the set of code points that a match of `node` can begin with; -1: any.
  int32_t first_of(const PatternNode& node) {
    CodePointSet set;
    if (!add_first(node, set)) return -1;
    const auto found = std::find(program_.sets.begin(), program_.sets.end(), set);
    const auto index = static_cast<int32_t>(found - program_.sets.begin());
    if (found != program_.sets.end()) return index;
    if (program_.sets.size() >= kMostPatternSets) return -1;
    program_.sets.push_back(std::move(set));
    return index;
  }

  // Adds the code points that a match of `node` can begin with. Returns false when `node` can match the empty text.
  bool add_first(const PatternNode& node, CodePointSet& set) const {
    switch (node.kind) {
      case PatternNode::Kind::Set:
        set.add(program_.sets[static_cast<size_t>(node.set)]);
        return true;
      case PatternNode::Kind::Sequence:
        return std::any_of(node.children.begin(), node.children.end(),
                           [&](const PatternNode& child) { return add_first(child, set); });
      case PatternNode::Kind::Choice: {
        bool all = true;
        for (const PatternNode& child : node.children) all = add_first(child, set) && all;
        return all;
      }
      case PatternNode::Kind::Repeat:
        return add_first(node.children[0], set) && node.min > 0;
      default:
        return false;
    }
  }

  PatternProgram& program_;
};

}  // namespace

Pattern::Pattern(std::string_view expression) : expression_(expression) {
  if (expression.size() > kLongest) throw InputError("the regular expression is longer than 8192 bytes");
  if (valid_utf8(expression) != expression.size()) throw InputError("the regular expression is not UTF-8");
  auto program = std::make_unique<PatternProgram>();
  const PatternNode node = parse_pattern(expression_, program->sets);
  if (can_be_empty(node)) {
    throw InputError("the regular expression " + expression_ + " can match the empty text, which is not supported");
  }
  Compiler compiler(*program);
  compiler.emit(node);
  compiler.finish();
  program_ = std::move(program);
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;

Pattern Pattern::literal(std::string_view text) {
  std::string expression;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && std::string_view("\\.^$|?*+()[]{}").find(c) != std::string_view::npos) {
      expression += '\\';
    }
    expression += c;
  }
  return Pattern(expression);
}

}  // namespace meshtrain

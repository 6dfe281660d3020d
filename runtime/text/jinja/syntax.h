#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

/// The parts of a parsed template. `at`: the byte of the source where a part begins.
namespace meshtrain::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    Constant,   ///< value
    Name,       ///< name
    List,       ///< parts
    Tuple,      ///< parts
    Dict,       ///< parts: key, value, key, value ...
    Choice,     ///< parts: value, condition, and the other value, null when there is none
    And,        ///< parts: left, right
    Or,         ///< parts: left, right
    Not,        ///< parts[0]
    Binary,     ///< name: the operator; parts: left, right
    Negative,   ///< parts[0]
    Positive,   ///< parts[0]
    Concat,     ///< parts, as texts
    Compare,    ///< parts[0], then names[i] parts[i + 1]
    Attribute,  ///< parts[0].name
    Item,       ///< parts[0][parts[1]]
    Slice,      ///< parts[0][parts[1]:parts[2]:parts[3]], null where there is none
    Call,       ///< parts[0](arguments)
    Filter,     ///< parts[0] | name(arguments); parts[0] is null in a filter block
    Test        ///< parts[0] is name(arguments)
  };

  Kind kind = Kind::Constant;
  size_t at = 0;
  int depth = 1;  ///< of the parts inside each other
  std::string name = {};
  Value value = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<std::string> names = {};
  std::vector<ExpressionPtr> positional = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

/// The target of an assignment: one name, `name.attribute` of a namespace, or several targets in parentheses.
struct Target {
  std::string name = {};
  std::string attribute = {};
  std::vector<Target> targets = {};
};

struct MacroParameter {
  std::string name;
  ExpressionPtr initial;  ///< null: there is none
};

struct Statement {
  enum class Kind {
    Data,         ///< text
    Print,        ///< expression
    If,           ///< branches: condition (null for else) and body
    For,          ///< target in expression [if condition] body, otherwise
    Set,          ///< target = expression
    SetBlock,     ///< target = the text of body, through filter
    Macro,        ///< text: its name, parameters, body
    CallBlock,    ///< expression, a call whose caller is body with parameters
    FilterBlock,  ///< body through filter
    Generation,   ///< body
    Break,
    Continue
  };
  struct Branch {
    ExpressionPtr condition;
    Body body;
  };

  Kind kind = Kind::Data;
  size_t at = 0;
  std::string text = {};
  ExpressionPtr expression = {}, condition = {}, filter = {};
  Target target = {};
  std::vector<Branch> branches = {};
  std::vector<MacroParameter> parameters = {};
  Body body = {}, otherwise = {};
};

}  // namespace meshtrain::jinja

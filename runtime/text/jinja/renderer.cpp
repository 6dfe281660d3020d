#include "runtime/text/jinja/renderer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "mesh/base/size_text.h"
#include "runtime/text/jinja/access.h"
#include "runtime/text/jinja/arithmetic.h"
#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/functions.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/printing.h"
#include "runtime/text/jinja/value_tests.h"

namespace meshtrain::jinja {
namespace {

class Macro final : public Object {
 public:
  Macro(Renderer& renderer, const Statement& statement, std::shared_ptr<Scope> scope)
      : renderer_(renderer), statement_(statement), scope_(std::move(scope)) {}
  const char* type() const override { return "a macro"; }
  bool is_callable() const override { return true; }
  Value call(const Arguments& arguments) override { return renderer_.call_macro(statement_, scope_, arguments); }

 private:
  Renderer& renderer_;
  const Statement& statement_;
  std::shared_ptr<Scope> scope_;
};

/// The rounds of a loop: `loop` in a template.
class Loop final : public Object {
 public:
  const char* type() const override { return "a loop"; }

  std::optional<Value> attribute(const std::string& name) const override {
    const auto length = static_cast<int64_t>(values.size());
    if (name == "index") return index + 1;
    if (name == "index0") return index;
    if (name == "revindex") return length - index;
    if (name == "revindex0") return length - index - 1;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == length;
    if (name == "length") return length;
    if (name == "previtem") {
      return index > 0 ? values[static_cast<size_t>(index - 1)] : undefined("there is no previous item");
    }
    if (name == "nextitem") {
      return index + 1 < length ? values[static_cast<size_t>(index + 1)] : undefined("there is no next item");
    }
    return std::nullopt;
  }

  std::vector<Value> values;
  int64_t index = 0;  ///< index of the current round
};

/// Counts a level of calls.
class CallLevel {
 public:
  explicit CallLevel(Budget& budget) : budget_(budget) { budget.enter(); }
  ~CallLevel() { budget_.leave(); }
  CallLevel(const CallLevel&) = delete;
  CallLevel& operator=(const CallLevel&) = delete;

 private:
  Budget& budget_;
};

}  // namespace

Renderer::Renderer(const RenderOptions& options, const std::function<void(size_t, const std::string&)>& fail)
    : options_(options), fail_(fail), budget_(options.limits), globals_(global_functions(*this)) {
  if (!options.messages) return;
  const auto& values = options.messages->values;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].is_dict()) messages_.emplace(values[i].dict_ptr().get(), i);
  }
}

Renderer::~Renderer() {
  for (const auto& forget : forget_) forget();
}

RenderResult Renderer::render(const Body& body) {
  const auto scope = std::make_shared<Scope>();
  remember([scope] { scope->clear(); });
  for (const auto& [name, value] : options_.variables) scope->set(name, value);
  outputs_ = {&rendered_.text};
  run(body, scope);
  return std::move(rendered_);
}

void Renderer::write(const std::string& text) {
  budget_.make(static_cast<int64_t>(text.size()));
  *outputs_.back() += text;
}

Renderer::Flow Renderer::run(const Body& body, const ScopePtr& scope) {
  for (const auto& statement : body) {
    const Flow flow = run(*statement, scope);
    if (flow != Flow::Next) return flow;
  }
  return Flow::Next;
}

Renderer::Flow Renderer::run(const Statement& statement, const ScopePtr& scope) try {
  using Kind = Statement::Kind;
  const CallLevel entered(budget_);
  budget_.work(kNodeWork);
  switch (statement.kind) {
    case Kind::Data:
      write(statement.text);
      break;
    case Kind::Print:
      write(to_text(evaluate(*statement.expression, scope), budget_));
      break;
    case Kind::If:
      return run_if(statement, scope);
    case Kind::For:
      run_for(statement, scope);
      break;
    case Kind::Set:
      assign(statement.target, evaluate(*statement.expression, scope), scope);
      break;
    case Kind::SetBlock: {
      Value text = make_text(captured(statement.body, scope), budget_);
      if (statement.filter) text = apply_filters(*statement.filter, text, scope);
      assign(statement.target, text, scope);
      break;
    }
    case Kind::Macro:
      scope->set(statement.text, make_macro(statement, scope));
      break;
    case Kind::CallBlock:
      run_call(statement, scope);
      break;
    case Kind::FilterBlock: {
      const Value text = make_text(captured(statement.body, scope), budget_);
      write(to_text(apply_filters(*statement.filter, text, scope), budget_));
      break;
    }
    case Kind::Generation:
      run_generation(statement, scope);
      break;
    case Kind::Break:
      return Flow::Break;
    case Kind::Continue:
      return Flow::Continue;
  }
  return Flow::Next;
} catch (const Failure& failure) {
  fail_(statement.at, failure.what());
  throw;
}

Renderer::Flow Renderer::run_if(const Statement& statement, const ScopePtr& scope) {
  for (const Statement::Branch& branch : statement.branches) {
    if (!branch.condition || evaluate(*branch.condition, scope).is_true()) return run(branch.body, scope);
  }
  return Flow::Next;
}

Renderer::Flow Renderer::run_for(const Statement& statement, const ScopePtr& scope) {
  const auto loop = std::make_shared<Loop>();
  loop->values = elements(evaluate(*statement.expression, scope), budget_);
  if (statement.condition) {
    std::vector<Value> kept;
    for (Value& value : loop->values) {
      const auto inner = std::make_shared<Scope>(scope);
      assign(statement.target, value, inner);
      if (evaluate(*statement.condition, inner).is_true()) kept.push_back(std::move(value));
    }
    loop->values = std::move(kept);
  }
  for (; loop->index < static_cast<int64_t>(loop->values.size()); ++loop->index) {
    budget_.work(kNodeWork);
    const Value& value = loop->values[static_cast<size_t>(loop->index)];
    const auto inner = std::make_shared<Scope>(scope);
    inner->set("loop", ObjectPtr(loop));
    assign(statement.target, value, inner);
    const auto message = value.is_dict() ? messages_.find(value.dict_ptr().get()) : messages_.end();
    const size_t before = rendered_.text.size();
    const Flow flow = run(statement.body, inner);
    if (message != messages_.end() && outputs_.size() == 1 && rendered_.text.size() > before) {
      rendered_.message_spans.push_back({message->second, {before, rendered_.text.size()}});
    }
    if (flow == Flow::Break) break;
  }
  if (loop->values.empty()) return run(statement.otherwise, std::make_shared<Scope>(scope));
  return Flow::Next;
}

void Renderer::run_call(const Statement& statement, const ScopePtr& scope) {
  const Expression& call = *statement.expression;
  const Value macro = evaluate(*call.parts[0], scope);
  if (!macro.is_object() || !macro.object()->is_callable()) throw Failure("a call block needs a macro");
  Arguments arguments = arguments_of(call, scope);
  arguments.named.emplace_back("caller", make_macro(statement, scope));
  write(to_text(macro.object()->call(arguments), budget_));
}

void Renderer::run_generation(const Statement& statement, const ScopePtr& scope) {
  if (outputs_.size() > 1)
    throw Failure("{% generation %} inside a macro or a block that is captured is not supported");
  const size_t before = rendered_.text.size();
  run(statement.body, std::make_shared<Scope>(scope));
  rendered_.generation.push_back({before, rendered_.text.size()});
}

void Renderer::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (!target.targets.empty()) {
    const std::vector<Value> parts = elements(value, budget_);
    if (parts.size() != target.targets.size()) {
      throw Failure(counted(parts.size(), "value is", "values are") + " assigned to " +
                    counted(target.targets.size(), "name"));
    }
    for (size_t i = 0; i < parts.size(); ++i) assign(target.targets[i], parts[i], scope);
  } else if (target.attribute.empty()) {
    scope->set(target.name, value);
  } else {
    const Value* const found = scope->find(target.name);
    auto* const space =
        found != nullptr && found->is_object() ? dynamic_cast<Namespace*>(found->object().get()) : nullptr;
    if (space == nullptr)
      throw Failure(target.name + " is not a namespace, and only namespaces have attributes that can be set");
    budget_.make(kElementBytes);
    space->set(target.attribute, value);
  }
}

std::string Renderer::captured(const Body& body, const ScopePtr& scope) {
  std::string text;
  outputs_.push_back(&text);
  try {
    run(body, std::make_shared<Scope>(scope));
  } catch (...) {
    outputs_.pop_back();
    throw;
  }
  outputs_.pop_back();
  return text;
}

ObjectPtr Renderer::make_macro(const Statement& statement, const ScopePtr& scope) {
  budget_.make(kElementBytes);
  remember([scope] { scope->clear(); });
  return std::make_shared<Macro>(*this, statement, scope);
}

Value Renderer::call_macro(const Statement& macro, const ScopePtr& outer, const Arguments& arguments) {
  const auto scope = std::make_shared<Scope>(outer);
  const auto& parameters = macro.parameters;
  if (arguments.positional.size() > parameters.size()) {
    throw Failure((macro.text.empty() ? "the caller" : macro.text) + " takes at most " +
                  counted(parameters.size(), "argument"));
  }
  for (const auto& [name, value] : arguments.named) {
    const bool known =
        name == "caller" || std::ranges::any_of(parameters, [&](const auto& p) { return p.name == name; });
    if (!known) throw Failure(macro.text + " has no parameter " + name);
    if (name == "caller") scope->set(name, value);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const MacroParameter& parameter = parameters[i];
    const Value* const given = arguments.find(i, parameter.name);
    scope->set(parameter.name, given != nullptr    ? *given
                               : parameter.initial ? evaluate(*parameter.initial, scope)
                                                   : undefined("the parameter " + parameter.name + " was not given"));
  }
  return make_text(captured(macro.body, scope), budget_);
}

Value Renderer::evaluate(const Expression& expression, const ScopePtr& scope) try {
  const CallLevel entered(budget_);
  budget_.work(kNodeWork);
  return compute(expression, scope);
} catch (const Failure& failure) {
  fail_(expression.at, failure.what());
  throw;
}

Value Renderer::argument(const ExpressionPtr& expression, const ScopePtr& scope) {
  return expression ? evaluate(*expression, scope) : Value(None{});
}

Value Renderer::compute(const Expression& expression, const ScopePtr& scope) {
  using Kind = Expression::Kind;
  const auto& parts = expression.parts;
  const auto part = [&](size_t index) { return evaluate(*parts[index], scope); };
  switch (expression.kind) {
    case Kind::Constant:
      return expression.value;
    case Kind::Name:
      return name_value(expression.name, *scope);
    case Kind::List:
    case Kind::Tuple: {
      std::vector<Value> values;
      for (size_t i = 0; i < parts.size(); ++i) values.push_back(part(i));
      return make_list(std::move(values), budget_, expression.kind == Kind::Tuple);
    }
    case Kind::Dict: {
      Dict dict;
      budget_.make(kElementBytes * static_cast<int64_t>(parts.size() + 1));
      for (size_t i = 0; i < parts.size(); i += 2) {
        const Value key = part(i);
        if (!key.is_text()) throw Failure("keys of dictionaries must be texts, and this is " + key.kind());
        dict.set(key.text(), part(i + 1));
      }
      return make_dict(std::move(dict));
    }
    case Kind::Choice:
      if (part(1).is_true()) return part(0);
      return parts[2] ? part(2) : undefined("the condition is not met, and there is no else");
    case Kind::And: {
      Value left = part(0);
      return left.is_true() ? part(1) : left;
    }
    case Kind::Or: {
      Value left = part(0);
      return left.is_true() ? left : part(1);
    }
    case Kind::Not:
      return !part(0).is_true();
    case Kind::Binary: {
      const Value left = part(0);
      return arithmetic(expression.name, left, part(1), budget_);
    }
    case Kind::Negative: {
      const Value value = part(0);
      return value.is_float() ? Value(-value.number()) : arithmetic("-", int64_t{0}, value, budget_);
    }
    case Kind::Positive:
      return arithmetic("+", int64_t{0}, part(0), budget_);
    case Kind::Concat: {
      std::string text;
      for (size_t i = 0; i < parts.size(); ++i) {
        const std::string more = to_text(part(i), budget_);
        budget_.make(static_cast<int64_t>(more.size()));
        text += more;
      }
      return make_text(std::move(text), budget_);
    }
    case Kind::Compare:
      return compute_compare(expression, scope);
    case Kind::Attribute:
      return get_attribute(part(0), expression.name, budget_);
    case Kind::Item: {
      const Value value = part(0);
      return get_item(value, part(1), budget_);
    }
    case Kind::Slice: {
      const Value value = part(0), begin = argument(parts[1], scope), end = argument(parts[2], scope);
      return get_slice(value, begin, end, argument(parts[3], scope), budget_);
    }
    case Kind::Call:
      return compute_call(expression, scope);
    case Kind::Filter: {
      const Value value = part(0);
      return apply_filter(expression.name, value, arguments_of(expression, scope), budget_);
    }
    case Kind::Test:
      return test(expression, scope);
  }
  return {};
}

Value Renderer::compute_compare(const Expression& expression, const ScopePtr& scope) {
  Value left = evaluate(*expression.parts[0], scope);
  for (size_t i = 0; i < expression.names.size(); ++i) {
    const std::string& sign = expression.names[i];
    Value right = evaluate(*expression.parts[i + 1], scope);
    bool holds = false;
    if (sign == "==" || sign == "!=") {
      holds = equal(left, right, budget_) == (sign == "==");
    } else if (sign == "in" || sign == "not in") {
      holds = contains(right, left, budget_) == (sign == "in");
    } else {
      const int order = compare(left, right, budget_);
      holds = sign == "<" ? order < 0 : sign == "<=" ? order <= 0 : sign == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Renderer::compute_call(const Expression& expression, const ScopePtr& scope) {
  const Expression& callee = *expression.parts[0];
  if (callee.kind == Expression::Kind::Attribute) {  // a method, without an object for it
    const Value self = evaluate(*callee.parts[0], scope);
    if (has_method(self, callee.name)) return call_method(self, callee.name, arguments_of(expression, scope), budget_);
    const Value found = get_attribute(self, callee.name, budget_);
    if (found.is_undefined()) throw Failure(*found.undefined().hint + ", which is called here");
    if (!found.is_object()) throw Failure(found.kind() + " cannot be called");
    return found.object()->call(arguments_of(expression, scope));
  }
  const Value found = evaluate(callee, scope);
  if (found.is_undefined()) throw Failure(*found.undefined().hint + ", which is called here");
  if (!found.is_object()) throw Failure(found.kind() + " cannot be called");
  return found.object()->call(arguments_of(expression, scope));
}

Value Renderer::apply_filters(const Expression& filter, const Value& text, const ScopePtr& scope) {
  const Value input = filter.parts[0] ? apply_filters(*filter.parts[0], text, scope) : text;
  return apply_filter(filter.name, input, arguments_of(filter, scope), budget_);
}

bool Renderer::test(const Expression& expression, const ScopePtr& scope) {
  return apply_test(expression.name, evaluate(*expression.parts[0], scope), arguments_of(expression, scope), budget_);
}

Value Renderer::name_value(const std::string& name, const Scope& scope) const {
  if (const Value* const found = scope.find(name)) return *found;
  const auto global = globals_.find(name);
  return global == globals_.end() ? undefined("\"" + name + "\" is undefined") : global->second;
}

Arguments Renderer::arguments_of(const Expression& expression, const ScopePtr& scope) {
  Arguments arguments;
  for (const auto& part : expression.positional) arguments.positional.push_back(evaluate(*part, scope));
  for (const auto& [name, part] : expression.named) arguments.named.emplace_back(name, evaluate(*part, scope));
  return arguments;
}

}  // namespace meshtrain::jinja

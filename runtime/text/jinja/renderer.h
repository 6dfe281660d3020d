#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/text/jinja/budget.h"
#include "runtime/text/jinja/scope.h"
#include "runtime/text/jinja/syntax.h"
#include "runtime/text/jinja/template.h"

namespace meshtrain::jinja {

/// One rendering of a template.
class Renderer {
 public:
  using ScopePtr = std::shared_ptr<Scope>;

  /// `fail`: throws an error at a byte of the source.
  Renderer(const RenderOptions& options, const std::function<void(size_t at, const std::string& reason)>& fail);
  ~Renderer();
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;

  RenderResult render(const Body& body);

  Budget& budget() { return budget_; }
  /// Renders the body of a macro with `arguments`.
  Value call_macro(const Statement& macro, const ScopePtr& outer, const Arguments& arguments);
  /// Keeps an object that may be part of a cycle until the end, when its values are forgotten.
  void remember(std::function<void()> forget) { forget_.push_back(std::move(forget)); }
  const RenderOptions& options() const { return options_; }

 private:
  enum class Flow { Next, Break, Continue };

  Flow run(const Body& body, const ScopePtr& scope);
  Flow run(const Statement& statement, const ScopePtr& scope);
  Flow run_if(const Statement& statement, const ScopePtr& scope);
  Flow run_for(const Statement& statement, const ScopePtr& scope);
  void run_call(const Statement& statement, const ScopePtr& scope);
  void run_generation(const Statement& statement, const ScopePtr& scope);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  /// Returns what `body` writes, in a scope of its own.
  std::string captured(const Body& body, const ScopePtr& scope);
  void write(const std::string& text);
  ObjectPtr make_macro(const Statement& statement, const ScopePtr& scope);

  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value compute(const Expression& expression, const ScopePtr& scope);
  Value compute_compare(const Expression& expression, const ScopePtr& scope);
  Value compute_call(const Expression& expression, const ScopePtr& scope);
  /// Returns what the filters of a block, or of a set block, make of its text.
  Value apply_filters(const Expression& filter, const Value& text, const ScopePtr& scope);
  bool test(const Expression& expression, const ScopePtr& scope);
  Value name_value(const std::string& name, const Scope& scope) const;
  Value argument(const ExpressionPtr& expression, const ScopePtr& scope);
  Arguments arguments_of(const Expression& expression, const ScopePtr& scope);

  const RenderOptions& options_;
  const std::function<void(size_t, const std::string&)>& fail_;
  Budget budget_;
  RenderResult rendered_;
  std::vector<std::string*> outputs_;  // the innermost last
  std::map<const Dict*, size_t> messages_;
  std::map<std::string, Value> globals_;
  std::vector<std::function<void()>> forget_;
};

}  // namespace meshtrain::jinja

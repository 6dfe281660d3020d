#include "runtime/text/jinja/template.h"

#include <algorithm>

#include "mesh/base/unicode/utf8.h"
#include "runtime/text/jinja/lexer.h"
#include "runtime/text/jinja/parser.h"
#include "runtime/text/jinja/renderer.h"
#include "runtime/text/jinja/texts.h"

namespace meshtrain::jinja {
namespace {

bool holds_generation(const Body& body) {
  return std::ranges::any_of(body, [](const auto& statement) {
    return statement->kind == Statement::Kind::Generation || holds_generation(statement->body) ||
           holds_generation(statement->otherwise) ||
           std::ranges::any_of(statement->branches, [](const auto& branch) { return holds_generation(branch.body); });
  });
}

}  // namespace

struct Template::Parts {
  std::string name;
  std::string source;
  std::function<void(size_t, const std::string&)> fail;
  Body body;
  bool has_generation = false;
};

Template::Template(std::string name, std::string_view source) {
  auto parts = std::make_unique<Parts>();
  parts->name = std::move(name);
  parts->source = normalized_source(with_replacements(source));
  parts->fail = [whole = parts.get()](size_t at, const std::string& reason) {
    const std::string_view before = std::string_view(whole->source).substr(0, at);
    const auto line = std::ranges::count(before, '\n') + 1;
    const size_t column = length_of(before.substr(before.rfind('\n') + 1)) + 1;  // npos + 1 is 0
    throw TemplateError(whole->name + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " + reason);
  };
  parts->body = parse(parts->source, parts->fail);
  parts->has_generation = holds_generation(parts->body);
  parts_ = std::move(parts);
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

RenderResult Template::render(const RenderOptions& options) const {
  return Renderer(options, parts_->fail).render(parts_->body);
}

bool Template::has_generation() const {
  return parts_->has_generation;
}

}  // namespace meshtrain::jinja

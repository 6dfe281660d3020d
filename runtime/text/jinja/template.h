#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mesh/base/error.h"
#include "runtime/text/jinja/budget.h"
#include "runtime/text/jinja/value.h"

namespace meshtrain::jinja {

/// Bytes [begin, end) of a rendered text.
struct Span {
  size_t begin = 0;
  size_t end = 0;
};

/// The text that a loop over messages has written in one round.
struct MessageSpan {
  size_t message = 0;  ///< index in RenderOptions::messages
  Span span;
};

struct RenderOptions {
  std::vector<std::pair<std::string, Value>> variables;
  ListPtr messages = nullptr;       ///< the list whose elements `message_spans` are about; null: of none
  std::optional<std::tm> now = {};  ///< what strftime_now() formats; none: the local time
  Limits limits = {};
};

struct RenderResult {
  std::string text;
  std::vector<Span> generation;            ///< what {% generation %} blocks have written
  std::vector<MessageSpan> message_spans;  ///< of rounds that wrote something, where no macro took the output
};

/// An error in a template or in rendering one: "NAME:LINE:COLUMN: REASON".
class TemplateError : public InputError {
 public:
  using InputError::InputError;
};

/// A Jinja template as transformers renders chat templates: trim_blocks, lstrip_blocks, loop controls, the generation
/// tag, tojson without escapes, raise_exception, strftime_now, and values that no template can change. Supports the
/// statements, filters, tests and methods of Jinja that public models' chat templates use; an error names any other.
///
/// Strings are UTF-8 and have the positions and lengths of Python's. Whole numbers have 64 bits. Letters beyond ASCII
/// keep their case: asking for another one is an error.
///
/// Immutable: any number of threads may render one.
class Template {
 public:
  /// Parses `source`. `name`: for messages, a file's. Throws TemplateError with line and column.
  Template(std::string name, std::string_view source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  /// Renders. Throws TemplateError with line and column: for what the template itself refuses (raise_exception), for
  /// values that it does not expect, and beyond the limits.
  RenderResult render(const RenderOptions& options) const;

  /// Returns true when the template has a {% generation %} block.
  bool has_generation() const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace meshtrain::jinja

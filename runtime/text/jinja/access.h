#pragma once

#include <string>

#include "runtime/text/jinja/value.h"

/// Access of a template to the inside of a value. Missing things are undefined values that say what was missing; what
/// is inside an undefined value is a Failure.
namespace meshtrain::jinja {

/// Returns value.name: a method of a text, list or dictionary before a key.
Value get_attribute(const Value& value, const std::string& name, Budget& budget);
/// Returns value[key]: a key before a method.
Value get_item(const Value& value, const Value& key, Budget& budget);
/// Returns what `path`, "a.b.0" of filters, names inside `value`.
Value get_path(const Value& value, const Value& path, Budget& budget);
/// Returns value[begin:end:step]; undefined or none bounds are left out.
Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget);

}  // namespace meshtrain::jinja

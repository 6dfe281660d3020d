#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/yaml/value.h"

namespace meshtrain {

/// A condition that needs more than the script's own text.
struct UntestedCondition {
  std::string text;        ///< "if [ -d /tmp ] (line 12)", or "case (line 12)"
  bool took_else = false;  ///< the lines of its else were taken; without it its own lines were left out alone
};

/// The arguments that a shell script gives to the Python program it starts.
struct ScriptArguments {
  YamlValue arguments;  ///< a map: "--lr": a scalar; a list of several values; "true" without one
  std::vector<UntestedCondition> untested;
};

/// Reads a script of bash, or a plain text of arguments, as far as arguments are built in it: variables, arrays, +=,
/// ${NAME:-default}, and if with comparisons of texts; nothing is run. Takes the arguments behind the first word that
/// ends with .py; without one those of the variables and lines that begin with "--". A variable that has no value
/// stays as it is written. Where a condition is not known, takes the lines of its else.
/// Throws InputError for a variable that grows without bound.
ScriptArguments read_script_arguments(const std::string& text, const std::shared_ptr<const YamlSource>& source);

}  // namespace meshtrain

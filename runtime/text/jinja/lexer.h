#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain::jinja {

/// A part of a template's source.
struct Token {
  enum class Kind { Data, BlockBegin, BlockEnd, PrintBegin, PrintEnd, Name, String, Whole, Float, Operator, End };

  Kind kind = Kind::End;
  size_t at = 0;     ///< its first byte in the source
  std::string text;  ///< of a String: its content
};

/// Throws an error at a byte of the source.
using FailAt = std::function<void(size_t at, const std::string& reason)>;

/// Returns the source as Jinja reads it: line ends as \n, and without the last one.
std::string normalized_source(std::string_view source);

/// Divides a normalised source into tokens, with trim_blocks and lstrip_blocks as transformers sets them. The last
/// token is an End. Calls `fail`, which must throw, when the source is malformed.
std::vector<Token> tokenize(const std::string& source, const FailAt& fail);

}  // namespace meshtrain::jinja

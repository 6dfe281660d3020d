#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Functions of Python's str, for valid UTF-8. Lengths and positions are in code points unless they say bytes.
namespace meshtrain::jinja {

size_t length_of(std::string_view text);
/// Returns the characters, which are parts of `text`.
std::vector<std::string_view> characters(std::string_view text);

/// Returns the first byte of `part` in `text` from byte `from` on; npos when it is not there. Takes linear time.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);

/// Return `text` without the spaces, or the characters of `set`, at its ends. `set`: null for spaces.
std::string_view strip_left(std::string_view text, const std::string* set = nullptr);
std::string_view strip_right(std::string_view text, const std::string* set = nullptr);
std::string_view strip(std::string_view text, const std::string* set = nullptr);

/// Return the parts between separators, or with a null separator between runs of spaces; `most`: splits at most, -1
/// for all. Throw Failure for an empty separator.
std::vector<std::string_view> split(std::string_view text, const std::string* separator, int64_t most);
std::vector<std::string_view> split_from_right(std::string_view text, const std::string* separator, int64_t most);
std::vector<std::string_view> split_lines(std::string_view text);

/// Returns `text` with `most` occurrences of `old` replaced, all of them for -1.
std::string replace(std::string_view text, const std::string& old, const std::string& by, int64_t most);
/// Returns the bytes that replace() would return.
int64_t replaced_size(std::string_view text, const std::string& old, const std::string& by, int64_t most);

/// Change the case. Throw Failure for characters beyond ASCII that could have another case.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
/// Returns the text of str.title().
std::string title(std::string_view text);

}  // namespace meshtrain::jinja

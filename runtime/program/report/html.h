#pragma once

#include <string>
#include <string_view>

namespace meshtrain {

/// Returns `text` for the content or a quoted attribute of HTML: & < > " ' are escaped, bytes that are not UTF-8 and
/// control characters become the replacement character, line breaks and tabs stay.
std::string escaped(std::string_view text);

}  // namespace meshtrain

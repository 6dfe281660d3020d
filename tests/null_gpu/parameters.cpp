#include "tests/null_gpu/parameters.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>

namespace meshtrain::null_gpu {
namespace {

constexpr int kWordBytes = 16;  // the largest read of a thread

/// The parameters with one number a row, in kernels of meshtrain that read their other parameters in words.
constexpr std::pair<std::string_view, int> kOneOfRow[] = {{"merge", 1}, {"merge", 3}, {"forward", 5}, {"backward", 4}};

/// Returns the size of an element, 0 for types that are not numbers.
int size_of(std::string_view type) {
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), type) != names.end();
  };
  if (is({"double", "long", "unsigned long", "long long", "unsigned long long"})) return 8;
  if (is({"float", "int", "unsigned int"})) return 4;
  if (is({"__nv_bfloat16", "__half", "c10::BFloat16", "c10::Half", "short", "unsigned short"})) return 2;
  return is({"bool", "char", "signed char", "unsigned char"}) ? 1 : 0;
}

/// Splits a list at its commas, except those within brackets.
std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size()) {
      depth += list[i] == '<' || list[i] == '(' || list[i] == '[' || list[i] == '{';
      depth -= list[i] == '>' || list[i] == ')' || list[i] == ']' || list[i] == '}';
      if (list[i] != ',' || depth > 0) continue;
    }
    if (i > begin) parts.push_back(list.substr(begin, i - begin));
    begin = std::min(list.find_first_not_of(' ', i + 1), list.size());
  }
  return parts;
}

/// Returns the text between the bracket that ends at `end` and the one that opens it.
std::string_view before(std::string_view name, size_t end) {
  int depth = 0;
  for (size_t i = end + 1; i-- > 0;) {
    depth += name[i] == ')' || name[i] == '>';
    depth -= name[i] == '(' || name[i] == '<';
    if (depth == 0) return name.substr(i + 1, end - i - 1);
  }
  return {};
}

/// Returns the element type of a pointer, empty for another parameter.
std::string_view element_of(std::string_view type) {
  for (const std::string_view qualifier : {" __restrict__", "__restrict__", " restrict"}) {
    if (type.ends_with(qualifier)) type.remove_suffix(qualifier.size());
  }
  if (!type.ends_with('*')) return {};
  type.remove_suffix(1);
  if (type.ends_with(" const")) type.remove_suffix(std::string_view(" const").size());
  return type;
}

}  // namespace

std::vector<PointerParameter> pointer_parameters(const std::string& name) {
  std::vector<PointerParameter> pointers;
  if (!name.ends_with(')')) return pointers;  // a C name, which says nothing
  const std::string_view list = before(name, name.size() - 1);
  const size_t open = name.size() - list.size() - 2;
  std::vector<std::string_view> arguments;  // of the template
  std::string_view function;
  if (name.find("meshtrain::") < open && open > 0 && name[open - 1] == '>') {
    const std::string_view inner = before(name, open - 1);
    arguments = split(inner);
    function = std::string_view(name).substr(0, open - inner.size() - 2);
    function.remove_prefix(function.rfind("::") + 2);
  }
  const auto number = std::find_if(arguments.begin(), arguments.end(), [](std::string_view argument) {
    return std::isdigit(static_cast<unsigned char>(argument.front())) != 0;
  });
  const int count = number != arguments.end() ? std::atoi(std::string(*number).c_str()) : 1;
  int index = 0;
  for (const std::string_view parameter : split(list)) {
    const std::string_view element = element_of(parameter);
    if (const int size = size_of(element); size > 0) {
      const bool in_words = std::find(arguments.begin(), number, element) != number &&
                            std::ranges::find(kOneOfRow, std::pair(function, index)) == std::end(kOneOfRow);
      pointers.push_back({index, in_words ? std::min(kWordBytes, count * size) : size});
    }
    ++index;
  }
  return pointers;
}

}  // namespace meshtrain::null_gpu

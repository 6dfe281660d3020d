#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace meshtrain::testing {
namespace {

constexpr std::array<uint64_t, 16> kLimits = {0,
                                              1,
                                              2,
                                              7,
                                              8,
                                              127,
                                              255,
                                              32767,
                                              65535,
                                              100'000'000,
                                              std::numeric_limits<int32_t>::max(),
                                              std::numeric_limits<uint32_t>::max(),
                                              uint64_t{1} << 40,
                                              std::numeric_limits<int64_t>::max(),
                                              uint64_t{1} << 63,
                                              std::numeric_limits<uint64_t>::max()};

constexpr std::array<const char*, 40> kValues = {"0",
                                                 "1",
                                                 "-1",
                                                 "2",
                                                 "8",
                                                 "65536",
                                                 "2147483647",
                                                 "2147483648",
                                                 "4294967295",
                                                 "4294967296",
                                                 "1099511627776",
                                                 "1152921504606846976",
                                                 "9223372036854775807",
                                                 "9223372036854775808",
                                                 "-9223372036854775808",
                                                 "18446744073709551615",
                                                 "18446744073709551616",
                                                 "1e400",
                                                 "-1e308",
                                                 "1e-320",
                                                 "0.5",
                                                 "1e18",
                                                 "NaN",
                                                 "true",
                                                 "false",
                                                 "null",
                                                 "[]",
                                                 "{}",
                                                 "[0]",
                                                 "[-1, 4]",
                                                 "{\"a\": 1, \"a\": 2}",
                                                 "\"\"",
                                                 "\"x\"",
                                                 "\"..\"",
                                                 "\"/etc/passwd\"",
                                                 "\"a\\u0000b\"",
                                                 "\"\\ud800\"",
                                                 "\"(((((((((a*)*)*)*)*)*)*)*)*b\"",
                                                 "\"F32\"",
                                                 "\"\\n\\u001b[2J\""};

bool is_number(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '.';
}

}  // namespace

Mutator::Span Mutator::around(size_t size, size_t edge) {
  if (size <= 2 * edge || once_in(8)) return {0, size};
  return once_in(2) ? Span{0, edge} : Span{size - edge, edge};
}

size_t Mutator::few() {
  return once_in(2) ? 1 : 1 + below(4);
}

std::string Mutator::bytes(std::string file) {
  for (size_t changes = few(); changes > 0; --changes) change_bytes(file, {0, file.size()});
  return file;
}

std::string Mutator::in_place(std::string file) {
  constexpr size_t kInPlace = 4;
  for (size_t changes = few(); changes > 0; --changes) change_bytes(file, {0, file.size()}, kInPlace);
  return file;
}

std::string Mutator::text(std::string file, size_t edge) {
  for (size_t changes = few(); changes > 0; --changes) {
    const Span where = around(file.size(), edge);
    if (once_in(4)) {
      change_bytes(file, where);
    } else {
      change_value(file, where);
    }
  }
  return file;
}

void Mutator::change_bytes(std::string& file, Span where, size_t kinds) {
  if (where.size == 0) {
    file.insert(where.begin, 1, static_cast<char>(random_()));
    return;
  }
  const size_t at = where.begin + below(where.size);
  const size_t length = std::min(file.size() - at, size_t{1} << below(10));
  switch (below(kinds)) {  // the first ones do not move bytes
    case 0:
      file[at] ^= static_cast<char>(1 << below(8));
      break;
    case 1:
      file[at] = static_cast<char>(random_());
      break;
    case 2:
      file[at] = "\x00\xff\x7f\x80{}[]\",:\\0- \n"[below(17)];
      break;
    case 3: {
      const uint64_t limit = kLimits[below(kLimits.size())] - (once_in(4) ? 1 : 0);
      std::memcpy(file.data() + at, &limit, std::min(file.size() - at, size_t{1} << below(4)));
      break;
    }
    case 4:
      file.insert(at, 1, static_cast<char>(random_()));
      break;
    case 5:
      file.erase(at, length);
      break;
    case 6:
      file.insert(at, file.substr(at, length));
      break;
    case 7:
      file.insert(where.begin + below(where.size), file.substr(at, length));
      break;
    default:
      if (once_in(4)) file.resize(at);
  }
}

std::string Mutator::value() {
  if (!once_in(16)) return kValues[below(kValues.size())];
  const size_t depth = std::array<size_t, 4>{30, 150, 1000, 200'000}[below(4)];
  const bool list = once_in(2);
  std::string text;
  for (size_t i = 0; i < depth; ++i) text += list ? "[" : "{\"a\":";
  return text + "1" + std::string(once_in(8) ? 0 : depth, list ? ']' : '}');
}

void Mutator::change_value(std::string& file, Span where) {
  std::vector<Span> values;  // numbers and strings
  const size_t end = where.begin + where.size;
  for (size_t at = where.begin; at < end;) {
    const size_t begin = at++;
    if (file[begin] == '"') {
      while (at < end && file[at] != '"') at += file[at] == '\\' ? 2 : 1;
      at = std::min(at + 1, end);
    } else if (is_number(file[begin])) {
      while (at < end && is_number(file[at])) ++at;
    } else {
      continue;
    }
    values.push_back({begin, at - begin});
  }
  if (values.empty()) return change_bytes(file, where);
  const Span chosen = values[below(values.size())], other = values[below(values.size())];
  switch (below(6)) {
    case 0:
      file.replace(chosen.begin, chosen.size, file.substr(other.begin, other.size));
      break;
    case 1: {  // repeats the range from one value to another: entries and keys twice
      const size_t from = std::min(chosen.begin, other.begin), to = std::max(chosen.begin, other.begin);
      file.insert(to, file.substr(from, std::min(to - from, size_t{256})));
      break;
    }
    case 2: {
      const size_t from = std::min(chosen.begin, other.begin), to = std::max(chosen.begin, other.begin);
      file.erase(from, std::min(to - from, size_t{256}));
      break;
    }
    default:
      file.replace(chosen.begin, chosen.size, value());
  }
}

}  // namespace meshtrain::testing

#include "runtime/text/jinja/chunks.h"

#include <algorithm>

#include "runtime/text/jinja/failure.h"

namespace meshtrain::jinja {

Value batch(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(2, {"linecount", "fill_with"});
  const int64_t count = arguments.needed(0, "linecount").whole();
  if (count < 1) throw Failure("linecount is below 1");
  const Value* const fill = arguments.find(1, "fill_with");
  std::vector<Value> lines, open;
  const auto end_line = [&] { lines.push_back(make_list(std::exchange(open, {}), budget)); };
  for (Value& element : elements(value, budget)) {
    if (static_cast<int64_t>(open.size()) == count) end_line();
    open.push_back(std::move(element));
  }
  if (open.empty()) return make_list(std::move(lines), budget);
  if (fill != nullptr && !fill->is_none()) {
    const int64_t missing = count - static_cast<int64_t>(open.size());
    if (missing > int64_t{1} << 40) throw Failure("linecount is too large");
    budget.make(kElementBytes * missing);
    open.insert(open.end(), static_cast<size_t>(missing), *fill);
  }
  end_line();
  return make_list(std::move(lines), budget);
}

Value slice(const Value& value, const Arguments& arguments, Budget& budget) {
  arguments.check(2, {"slices", "fill_with"});
  const int64_t count = arguments.needed(0, "slices").whole();
  if (count == 0) throw Failure("slices is 0");
  if (count > int64_t{1} << 40) throw Failure("slices is too large");
  if (count > 0) budget.make(kElementBytes * count);
  const Value* const fill = arguments.find(1, "fill_with");
  const std::vector<Value> all = elements(value, budget);
  const auto size = static_cast<int64_t>(all.size());
  std::vector<Value> slices;
  auto next = all.begin();
  for (int64_t i = 0; i < count; ++i) {
    const bool has_one_more = i < size % count;
    const auto end = next + static_cast<ptrdiff_t>(size / count + (has_one_more ? 1 : 0));
    std::vector<Value> part(next, end);
    next = end;
    if (fill != nullptr && !fill->is_none() && !has_one_more) part.push_back(*fill);
    slices.push_back(make_list(std::move(part), budget));
  }
  return make_list(std::move(slices), budget);
}

}  // namespace meshtrain::jinja

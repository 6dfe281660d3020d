#include "runtime/program/generate/stop_strings.h"

#include <algorithm>

namespace meshtrain {

StopStrings::StopStrings(const Tokenizer& tokenizer, std::vector<std::string> strings,
                         const std::vector<int64_t>& prompt)
    : tokenizer_(tokenizer),
      strings_(std::move(strings)),
      base_(tokenizer.ids("abcdef", /*add_special=*/false)),
      base_bytes_(tokenizer.decode(base_).size()),
      longest_(std::ranges::max(strings_, {}, &std::string::size).size()) {
  const size_t first = prompt.size() - std::min(prompt.size(), longest_ * 4);  // tokens without text are rare
  for (size_t i = first; i < prompt.size(); ++i) add(prompt[i]);
}

std::string StopStrings::bytes_of(int64_t token) const {
  std::vector<int64_t> ids = base_;
  ids.push_back(token);
  return tokenizer_.decode(ids).substr(base_bytes_);
}

bool StopStrings::add(int64_t token) {
  const size_t before = tail_.size();
  tail_ += bytes_of(token);
  const bool ends = std::ranges::any_of(strings_, [&](const std::string& each) {
    const size_t first = before - std::min(before, each.size() - 1);
    return tail_.find(each, first) != std::string::npos;
  });
  tail_.erase(0, tail_.size() - std::min(tail_.size(), longest_ - 1));
  return ends;
}

}  // namespace meshtrain

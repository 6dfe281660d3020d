#include "runtime/text/tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

std::string normalise(const FormStep& step, std::string text) {
  return normal_form(step.form, text);
}

std::string normalise(const StripStep& step, std::string text) {
  const char *begin = text.data(), *end = begin + text.size();
  for (const char* at = begin; step.left && at != end && is_space(next_code_point(at));) begin = at;
  for (const char* at = end; step.right && at != begin && is_space(previous_code_point(at));) end = at;
  return std::string(begin, end);
}

std::string normalise(const PrependStep& step, std::string text) {
  return text.empty() ? text : step.text + text;
}

std::string normalise(const ReplaceStep& step, std::string text) {
  Pattern::Alternatives alternatives;
  std::string result;
  result.reserve(text.size());
  for (size_t from = 0; from < text.size();) {
    const std::string_view match = step.pattern.find(text, from, alternatives);
    const size_t begin = match.empty() ? text.size() : static_cast<size_t>(match.data() - text.data());
    result.append(text, from, begin - from);
    if (match.empty()) break;
    result += step.content;
    from = begin + match.size();
  }
  return result;
}

}  // namespace

Normalizer::Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {
  only_composes_ = std::all_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
    const auto* const form = std::get_if<FormStep>(&step);
    return form != nullptr && form->form == NormalForm::Nfc;
  });
}

bool Normalizer::surely_keeps(std::string_view text) const {
  return steps_.empty() || (only_composes_ && is_surely_nfc(text));
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const NormalizerStep& step : steps_) {
    result = std::visit([&](const auto& kind) { return normalise(kind, std::move(result)); }, step);
  }
  return result;
}

bool Normalizer::may_remove_beginning() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
    if (const auto* const replace = std::get_if<ReplaceStep>(&step)) return replace->content.empty();
    const auto* const strip = std::get_if<StripStep>(&step);
    return strip != nullptr && strip->left;
  });
}

}  // namespace meshtrain

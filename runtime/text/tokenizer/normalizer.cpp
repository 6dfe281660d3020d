#include "runtime/text/tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

/// Returns `text` with each code point replaced by what `change(code_point, result)` appends to the result.
template <class Change>
std::string mapped(std::string_view text, const Change& change) {
  std::string result;
  result.reserve(text.size());
  for (const char *at = text.data(), *end = at + text.size(); at != end;) change(next_code_point(at), result);
  return result;
}

std::string without(std::string_view text, bool (*is_removed)(uint32_t)) {
  return mapped(text, [&](uint32_t c, std::string& result) {
    if (!is_removed(c)) append_utf8(c, result);
  });
}

std::string normalise(const FormStep& step, std::string text) {
  return normal_form(step.form, text);
}

std::string normalise(const LowercaseStep&, std::string text) {
  return mapped(text, append_lowercase);
}

std::string normalise(const StripStep& step, std::string text) {
  const char *begin = text.data(), *end = begin + text.size();
  for (const char* at = begin; step.left && at != end && is_space(next_code_point(at));) begin = at;
  for (const char* at = end; step.right && at != begin && is_space(previous_code_point(at));) end = at;
  return std::string(begin, end);
}

std::string normalise(const StripAccentsStep&, std::string text) {
  return without(text, is_combining_mark);
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

std::string normalise(const BertStep& step, std::string text) {
  if (step.clean_text) {
    text = mapped(text, [](uint32_t c, std::string& result) {
      if (!is_cleaned_away(c)) append_utf8(is_cleaned_to_space(c) ? ' ' : c, result);
    });
  }
  if (step.handle_chinese_chars) {
    text = mapped(text, [](uint32_t c, std::string& result) {
      const char* const space = is_ideograph(c) ? " " : "";
      result += space;
      append_utf8(c, result);
      result += space;
    });
  }
  if (step.strip_accents) text = without(normal_form(NormalForm::Nfd, text), is_nonspacing_mark);
  return step.lowercase ? mapped(text, append_lowercase) : text;
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
    if (const auto* const strip = std::get_if<StripStep>(&step)) return strip->left;
    return std::holds_alternative<StripAccentsStep>(step) || std::holds_alternative<BertStep>(step);
  });
}

}  // namespace meshtrain

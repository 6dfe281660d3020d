#include "runtime/program/recipe/documented.h"

#include <array>
#include <charconv>

namespace meshtrain {

std::optional<PublishedFigure> figure_of(const DocumentedRun& run) {
  constexpr std::array kUnits = {"tok/s/gpu", "s/step", "TFLOP/s full", "TFLOP/s causal"};
  const char* const end = run.figure.data() + run.figure.size();
  PublishedFigure figure;
  const auto [last, error] = std::from_chars(run.figure.data(), end, figure.value);
  if (error != std::errc() || figure.value <= 0 || last == end || *last != ' ') return std::nullopt;
  const std::string_view rest(last + 1, static_cast<size_t>(end - last - 1));
  for (const char* unit : kUnits) {
    const std::string_view word = unit;
    if (!rest.starts_with(word) || (rest.size() > word.size() && rest[word.size()] != ',')) continue;
    figure.unit = unit;
    return figure;
  }
  return std::nullopt;
}

}  // namespace meshtrain

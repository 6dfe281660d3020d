#include "runtime/program/recipe/documented.h"

#include <array>
#include <charconv>

#include "runtime/program/recipe/load.h"
#include "runtime/program/yaml/layers.h"
#include "runtime/program/yaml/reader.h"

namespace meshtrain {

std::optional<DocumentedRun> load_documented(const std::filesystem::path& file) {
  YamlValue root = read_layers(file);
  recipe_keys().expand_shorthands(root);
  Reader reader(root, recipe_keys(), Reader::Files::LeaveAlone);
  std::optional<DocumentedRun> run;
  reader.section("documented", run);
  reader.refuse_missing();
  return run;
}

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

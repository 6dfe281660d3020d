// Predicts published training runs of other programs and of this one with the forecast (README.md).
//   published_benchmark TABLE.csv
// Prints a row for each run, the rates that were fitted and, as the last line, the score as JSON.
#include <cstdio>
#include <exception>

#include "mesh/base/size_text.h"
#include "runtime/program/published/text.h"

namespace meshtrain {
namespace {

void print_predictions(const char* table) {
  const PublishedRuns runs(read_published_table(table));
  const std::vector<PublishedForecast> forecasts = runs.predict_each_from_others();
  const PublishedScore score = score_of(forecasts);
  std::printf("%s\n%s: %s\n", to_text(forecasts).c_str(), counted(score.rows, "run").c_str(), to_text(score).c_str());
  std::printf("without a fit: %s\n", to_text(score_of(runs.predict({}))).c_str());
  std::printf("rates fitted on all runs, times those of sources: %s\n", to_text(runs.fitted()).c_str());
  std::printf("rates of documented recipes, times those of sources: %s\n", to_text(program_rates()).c_str());
  std::printf("rates of the presets, times those of sources: %s\n", to_text(preset_rates()).c_str());
  std::printf("%s\n", to_json(score).c_str());
}

}  // namespace
}  // namespace meshtrain

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: published_benchmark TABLE.csv\n", stderr);
    return 2;
  }
  try {
    meshtrain::print_predictions(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "published_benchmark: %s\n", error.what());
    return 2;
  }
  return 0;
}

#include "runtime/program/published/text.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "mesh/base/size_text.h"

namespace meshtrain {

std::string number_text(const char* format, double number) {
  char text[48];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

namespace {

std::string published_seconds(double seconds) {
  return number_text(seconds < 10 ? "%.3f s" : "%.2f s", seconds);
}

std::string error_text(double error) {
  return number_text("%+.1f %%", 100 * error);
}

std::string published_line(const PublishedForecast& forecast) {
  const PublishedRun& run = forecast.run;
  std::string time_error = "-", memory = "-", memory_error = "-";
  if (const auto error = forecast.time_error()) time_error = error_text(*error);
  if (run.memory_gib) memory = number_text("%.1f GiB", *run.memory_gib);
  if (const auto error = forecast.memory_error()) memory_error = error_text(*error);
  if (!forecast.ran()) memory_error = forecast.fits() ? "missed" : "named";
  if (forecast.ran() && !forecast.fits()) memory_error = "refused";
  if (run.fits) memory = *run.fits ? "fits" : "out of mem";
  char line[160];
  std::snprintf(line, sizeof line, "  %-24.24s %-10.10s %10s %10s %8s %11s %10s %8s\n",
                run.id.substr(run.id.rfind('/') + 1).c_str(), forecast.software.c_str(),
                published_seconds(forecast.time.total()).c_str(),
                forecast.measured_seconds ? published_seconds(*forecast.measured_seconds).c_str() : "-",
                time_error.c_str(), number_text("%.1f GiB", forecast.memory / (1 << 30)).c_str(), memory.c_str(),
                memory_error.c_str());
  return line;
}

}  // namespace

std::string to_text(const std::vector<PublishedForecast>& forecasts) {
  std::string text =
      "  run                      program          step   measured    error      memory   measured    error\n";
  std::string source;
  for (const PublishedForecast& forecast : forecasts) {
    const std::string own = forecast.run.publication();
    if (own != source) {
      source = own;
      text += source + "\n";
    }
    text += published_line(forecast);
  }
  return text;
}

std::string to_text(const PublishedScore& score) {
  return number_text("time %.1f %% off", 100 * score.time_error_mean) +
         number_text(", at worst %.1f %%", 100 * score.time_error_worst) +
         number_text("; Kendall's tau %.2f", score.kendall_tau_mean) +
         number_text("; memory %.1f %% off; ", 100 * score.memory_error_mean) +
         std::to_string(score.out_of_memory_named) + " of " + std::to_string(score.out_of_memory_total) +
         " that ran out of memory named, " + std::to_string(score.fitting_refused) + " refused that ran";
}

std::string to_json(const PublishedScore& score) {
  const nlohmann::ordered_json all = {{"rows", score.rows},
                                      {"time_error_mean", score.time_error_mean},
                                      {"time_error_worst", score.time_error_worst},
                                      {"kendall_tau_mean", score.kendall_tau_mean},
                                      {"memory_error_mean", score.memory_error_mean},
                                      {"out_of_memory_named", score.out_of_memory_named},
                                      {"out_of_memory_total", score.out_of_memory_total},
                                      {"fitting_refused", score.fitting_refused}};
  return all.dump();
}

}  // namespace meshtrain

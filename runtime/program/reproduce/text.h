#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/program/published/published_runs.h"
#include "runtime/program/reproduce/catalogue.h"

namespace meshtrain {

/// Returns a row for each recipe, by folder.
std::string list_text(const std::vector<DocumentedRecipe>& recipes);

/// Returns the tables of docs/reproduce.md, one for each folder.
std::string list_markdown(const std::vector<DocumentedRecipe>& recipes);

/// Returns what is documented about a recipe, its command, the files to fetch, and the plan beside the published
/// figure.
std::string describe(const DocumentedRecipe& recipe);

/// Returns the predictions of the recipes whose figure is a speed, with program_rates().
std::vector<PublishedForecast> predict_published(const std::vector<DocumentedRecipe>& recipes);

}  // namespace meshtrain

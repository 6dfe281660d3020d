#include "runtime/program/reproduce/text.h"

#include <algorithm>
#include <sstream>

#include "mesh/base/size_text.h"
#include "runtime/program/forecast/mesh_forecast.h"
#include "runtime/program/published/text.h"

namespace meshtrain {
namespace {

std::string batch_of(const Recipe& recipe) {
  return std::to_string(recipe.train.global_batch) + " / " + std::to_string(recipe.train.micro_batch);
}

/// Returns the mode of FSDP, with what a pipeline and checkpointing add.
std::string modes_of(const Recipe& recipe) {
  std::string text = recipe.parallel.fsdp.mode;
  if (recipe.parallel.pipeline.stages_per_rank > 1) {
    text += ", " + std::to_string(recipe.parallel.pipeline.stages_per_rank) + " stages a rank";
  }
  return text;
}

std::string own_plan(const DocumentedRecipe& recipe, const std::string& hardware) {
  Recipe asked = recipe.recipe;
  asked.device = "auto";
  const auto machine = std::make_shared<const Machine>(load_machine(hardware));
  const ForecastRequest request = forecast_request(asked, recipe.num_ranks(), 0, machine);
  const MeshLayout layout = MeshLayout::fit(asked.parallel.mesh, asked.parallel.order, recipe.num_ranks());
  const MeshForecast forecast = forecast_mesh(asked, layout, {}, request);
  return number_text("%.3g s a step, ", forecast.seconds()) + size_text(forecast.memory()) + " of " +
         size_text(machine->memory) + (forecast.fits ? "" : ": DOES NOT FIT");
}

/// Returns the parts of a step that take at least a hundredth of it: "products 61 %, waiting for tp 12 %".
std::string parts_of(const TimeForecast& time) {
  std::string text;
  const auto add = [&](const std::string& name, double seconds) {
    if (seconds < 0.01 * time.total()) return;
    text += (text.empty() ? "" : ", ") + name + number_text(" %.0f %%", 100 * seconds / time.total());
  };
  add("products", time.products);
  add("attention", time.attention);
  add("elementwise", time.elementwise);
  add("optimizer", time.optimizer);
  add("bubble", time.bubble);
  for (const auto& [group, seconds] : time.exposed) add("waiting for " + group, seconds);
  return text;
}

std::string plan_text(const DocumentedRecipe& recipe) {
  const std::string hardware = recipe.documented.hardware.empty() ? "h100" : recipe.documented.hardware;
  std::string text = "plan for " + std::to_string(recipe.num_ranks()) + " x " + hardware +
                     (recipe.documented.hardware.empty() ? " (hardware is not documented)" : "") + ":\n";
  text += "  this program              " + own_plan(recipe, hardware) + "\n";
  const PublishedRun run = run_of(recipe.name, recipe.recipe, recipe.documented);
  const PublishedForecast predicted = predict(run, program_rates());
  text += "  the program that ran      " + number_text("%.3g s a step, ", predicted.time.total()) +
          number_text("%.1f GiB", predicted.memory / (1 << 30)) + ", predicted as " + predicted.software + "\n" +
          "                            " + parts_of(predicted.time) + "\n";
  if (recipe.documented.figure.empty()) return text + "  published                 no figure\n";
  text += "  published                 " + recipe.documented.figure;
  if (const auto error = predicted.time_error()) {
    text += number_text(" (%.3g s a step): the prediction is ", *predicted.measured_seconds) +
            number_text("%+.1f %% off", 100 * *error);
  }
  return text + "\n";
}

std::string folder_of(const DocumentedRecipe& recipe) {
  return recipe.name.substr(0, recipe.name.find('/'));
}

/// Returns the words, each with a space after it, with which all references begin: "NeMo Automodel ".
std::string common_words(const std::vector<DocumentedRecipe>& recipes) {
  std::string common = recipes.front().documented.reference + " ";
  for (const DocumentedRecipe& each : recipes) {
    while (!(each.documented.reference + " ").starts_with(common)) {
      common.pop_back();
      common.resize(common.rfind(' ') + 1);
    }
  }
  return common;
}

/// Returns the axes of the mesh with more than one rank: "dp=2,cp=2".
std::string axes_of(const DocumentedRecipe& recipe) {
  std::istringstream mesh(recipe.mesh());
  std::string text;
  for (std::string axis; std::getline(mesh, axis, ',');) {
    if (!axis.ends_with("=1")) text += (text.empty() ? "" : ",") + axis;
  }
  return text.empty() ? "1 rank" : text;
}

/// Returns the title and the table of a folder's recipes. References leave out the words that the title has.
std::string table_of(const std::string& folder, const std::vector<DocumentedRecipe>& recipes) {
  const std::string common = common_words(recipes);
  const auto reference = [&](const DocumentedRecipe& each) {
    return each.documented.reference.substr(std::min(common.size(), each.documented.reference.size()));
  };
  const bool has_references = std::ranges::any_of(recipes, [&](const auto& each) { return !reference(each).empty(); });
  const bool has_figures =
      std::ranges::any_of(recipes, [](const auto& each) { return !each.documented.figure.empty(); });
  const std::string source = common.substr(0, common.rfind(' '));
  std::string text = "### " + folder + (source.empty() || source == folder ? "" : ": " + source) +
                     "\n\n| recipe | mesh | model |" + (has_references ? " documented in |" : "") +
                     (has_figures ? " published |" : "") + "\n|---|---|---|" + (has_references ? "---|" : "") +
                     (has_figures ? "---|" : "") + "\n";
  for (const DocumentedRecipe& each : recipes) {
    text += "| [" + each.name.substr(each.name.rfind('/') + 1) + "](../recipes/" + each.name + ".yaml) | " +
            axes_of(each) + " | " + each.model() + " |" + (has_references ? " " + reference(each) + " |" : "") +
            (has_figures ? " " + each.documented.figure + " |" : "") + "\n";
  }
  return text;
}

}  // namespace

std::string list_text(const std::vector<DocumentedRecipe>& recipes) {
  size_t widest_name = 0, widest_mesh = 0, widest_model = 0;
  for (const DocumentedRecipe& each : recipes) {
    widest_name = std::max(widest_name, each.name.size());
    widest_mesh = std::max(widest_mesh, each.mesh().size());
    widest_model = std::max(widest_model, each.model().size());
  }
  const auto padded = [](std::string text, size_t width) {
    text.resize(std::max(width, text.size()), ' ');
    return text + "  ";
  };
  std::string text = padded("name", widest_name) + padded("mesh", widest_mesh) + padded("model", widest_model) +
                     padded("tokens", 7) + padded("batch", 9) + "published\n";
  for (const DocumentedRecipe& each : recipes) {
    text += padded(each.name, widest_name) + padded(each.mesh(), widest_mesh) + padded(each.model(), widest_model) +
            padded(std::to_string(each.recipe.train.sequence_length), 7) + padded(batch_of(each.recipe), 9) +
            (each.documented.figure.empty() ? "-" : each.documented.figure) + "\n";
  }
  return text + counted(recipes.size(), "recipe") +
         "; batch: samples of a step / of a rank at once. meshtrain reproduce NAME says where each is documented\n";
}

std::string list_markdown(const std::vector<DocumentedRecipe>& recipes) {
  std::string text;
  for (auto begin = recipes.begin(); begin != recipes.end();) {
    const std::string folder = folder_of(*begin);
    const auto end = std::find_if(begin, recipes.end(), [&](const auto& each) { return folder_of(each) != folder; });
    text += (text.empty() ? "" : "\n") + table_of(folder, {begin, end});
    begin = end;
  }
  return text;
}

std::string describe(const DocumentedRecipe& recipe) {
  const DocumentedRun& documented = recipe.documented;
  std::string text = recipe.name + "\n  documented   " + documented.reference + "\n  mesh         " + recipe.mesh() +
                     ", " + counted(recipe.num_ranks(), "rank") + ", " + modes_of(recipe.recipe) + "\n  model        " +
                     recipe.model() + ", " + std::to_string(recipe.recipe.train.sequence_length) + " tokens, " +
                     counted(recipe.recipe.train.global_batch, "sample") + " a step, " +
                     std::to_string(recipe.recipe.train.micro_batch) + " at once\n";
  if (!documented.differs.empty()) text += "  differs      " + documented.differs + "\n";
  const std::string command = "meshtrain train " + recipe.file.string();
  text += "  command      " + (recipe.num_ranks() == 1 ? "" : "mpirun -n " + std::to_string(recipe.num_ranks()) + " ") +
          command + "\n\n";
  const std::vector<std::string> missing = missing_files(recipe);
  text += missing.empty() ? "every file that it needs exists\n" : "to fetch:\n";
  for (const std::string& line : missing) text += "  " + line + "\n";
  return text + "\n" + plan_text(recipe);
}

std::vector<PublishedForecast> predict_published(const std::vector<DocumentedRecipe>& recipes) {
  std::vector<PublishedForecast> forecasts;
  for (const DocumentedRecipe& each : recipes) {
    if (!figure_of(each.documented)) continue;
    forecasts.push_back(predict(run_of(each.name, each.recipe, each.documented), program_rates()));
  }
  return forecasts;
}

}  // namespace meshtrain

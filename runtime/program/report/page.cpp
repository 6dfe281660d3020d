#include "runtime/program/report/page.h"

#include <algorithm>
#include <ctime>

#include "mesh/base/size_text.h"
#include "runtime/program/report/facts.h"
#include "runtime/program/report/html.h"
#include "runtime/program/report/sections.h"

namespace meshtrain {
namespace {

/// A run's facts: tiles.
std::string tiles(const RunRecord& run) {
  std::string html = "<div class=\"tiles\">\n";
  for (const Fact& fact : facts_of(run)) {
    html += "<div><span>" + escaped(fact.label) + "</span><b>" + escaped(fact.value) + "</b><span>" +
            escaped(fact.note) + "</span></div>\n";
  }
  return html + "</div>\n";
}

/// The facts of several runs: a row for each fact, a column for each run.
std::string comparison(const Runs& runs) {
  std::vector<std::string> labels;
  for (const RunRecord* run : runs) {
    for (const Fact& fact : facts_of(*run)) {
      if (std::find(labels.begin(), labels.end(), fact.label) == labels.end()) labels.push_back(fact.label);
    }
  }
  std::string html = "<div class=\"scroll\"><table><tr><th></th>";
  for (size_t i = 0; i < runs.size(); ++i) html += "<th>" + run_name(runs, i) + "</th>";
  html += "</tr>\n";
  for (const std::string& label : labels) {
    html += "<tr><td>" + escaped(label) + "</td>";
    for (const RunRecord* run : runs) {
      const std::vector<Fact> facts = facts_of(*run);
      const auto fact = std::find_if(facts.begin(), facts.end(), [&](const Fact& any) { return any.label == label; });
      html += "<td>" + (fact == facts.end() ? "" : escaped(fact->value)) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string subtitle(const RunRecord& run) {
  std::string text = run.folder.string();
  const auto known =
      std::find_if(run.starts.rbegin(), run.starts.rend(), [](const RunStart& start) { return !start.model.empty(); });
  if (known != run.starts.rend()) text += "; " + known->model;
  if (const std::string meshes = run.meshes_text(); !meshes.empty()) text += "; " + meshes;
  return text;
}

std::string head(const Runs& runs) {
  if (runs.size() == 1) {
    const RunRecord& run = *runs.front();
    return "<h1>" + escaped(run.name) + "</h1>\n<p class=\"soft\">" + escaped(subtitle(run)) + "</p>\n" + tiles(run);
  }
  std::string html = "<h1>" + counted(runs.size(), "run") + "</h1>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    html += "<p>" + run_name(runs, i) + " <span class=\"soft\">" + escaped(subtitle(*runs[i])) + "</span></p>\n";
  }
  return html + comparison(runs);
}

std::string title_of(const Runs& runs) {
  std::string title;
  for (const RunRecord* run : runs) title += (title.empty() ? "" : ", ") + run->name;
  constexpr size_t kMost = 100;
  return title.substr(0, kMost) + " - meshtrain";
}

}  // namespace

std::string make_page(const Runs& runs, const std::optional<int64_t>& version) {
  const bool follows = version.has_value();
  // Nothing may be loaded, and only a page that follows may ask the server that it is of.
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src "
      "'unsafe-inline'; img-src data:; connect-src " +
      std::string(follows ? "'self'" : "'none'") +
      "\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n"
      "<title>" +
      escaped(title_of(runs)) + "</title>\n<style>" + kPageStyle + "</style>\n</head>\n<body>\n";
  html += "<main data-version=\"" + std::to_string(version.value_or(0)) + "\">\n" + head(runs);
  for (const auto section : {problems_section, training_section, speed_section, time_section, communication_section,
                             goodput_section, plan_section, history_section, mesh_section, recipe_section}) {
    html += section(runs);
  }
  html +=
      "<footer>" + std::string(follows ? "As of " : "Made by meshtrain report, ") +
      time_text(static_cast<double>(std::time(nullptr))) +
      ". Draw a range of steps in a chart to see it larger; a double click shows everything again.</footer>\n</main>\n";
  if (follows) html += "<p id=\"follow\" class=\"soft\">follows the run</p>\n";
  return html + "<script>" + kPageScript + (follows ? kFollowScript : "") + "</script>\n</body>\n</html>\n";
}

}  // namespace meshtrain

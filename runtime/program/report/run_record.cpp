#include "runtime/program/report/run_record.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <system_error>

#include "mesh/base/error.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/json_object.h"
#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kLargestText = 1 << 24;  // bytes of a recipe, decisions, a list of hosts

bool has(const fs::path& file) {
  std::error_code unknown;
  return fs::exists(file, unknown);
}

/// Returns the file's path: `name` in `folder`, or `older`, its name in an older version, when only that exists.
fs::path file_in(const fs::path& folder, const char* name, const char* older) {
  return has(folder / name) || !has(folder / older) ? folder / name : folder / older;
}

/// Returns the text of a file; empty when it does not exist. Throws InputError when it cannot be read.
std::string text_of_file(const fs::path& file) {
  if (!has(file)) return "";
  const FileReader reader(file);
  if (reader.size() > kLargestText) throw InputError(file.string() + " is too large for a file of this name");
  std::string text(static_cast<size_t>(reader.size()), '\0');
  reader.read(0, text.data(), reader.size());
  return text;
}

FlatKeys keys_of_file(const fs::path& file) {
  const std::string text = text_of_file(file);
  if (text.empty()) return {};
  auto source = std::make_shared<YamlSource>();
  source->name = file.string();
  return flat_keys(parse_yaml(text, source), "data.mixture");
}

int64_t whole_number_of(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0 ? number : 0;
}

/// Returns the factor of a mesh's ranks: ep is none.
int64_t factor(const std::pair<std::string, int64_t>& axis) {
  return axis.first == "ep" ? 1 : axis.second;
}

/// Returns the axes in a decisions.yaml, its keys mesh.AXIS. Returns none when they do not form a mesh.
std::vector<std::pair<std::string, int64_t>> mesh_of(const FlatKeys& decisions) {
  constexpr std::string_view kBefore = "mesh.";
  std::vector<std::pair<std::string, int64_t>> mesh;
  int64_t num_ranks = 1;
  for (const auto& [key, value] : decisions) {
    if (!key.starts_with(kBefore)) continue;
    const int64_t size = whole_number_of(value);
    if (size == 0 || size > kMostRanks / num_ranks) throw InputError("mesh: " + value + " is not a size");
    mesh.emplace_back(key.substr(kBefore.size()), size);
    num_ranks *= factor(mesh.back());
  }
  return mesh;
}

std::vector<std::string> hosts_of_file(const fs::path& file) {
  const std::string text = text_of_file(file);
  std::vector<std::string> hosts;
  if (text.empty()) return hosts;
  const nlohmann::json object = parse_json_object(file.string(), text);
  const auto list = object.find("hosts");
  if (list == object.end() || !list->is_array()) throw InputError(file.string() + " has no list of hosts");
  for (const nlohmann::json& host : *list) {
    if (!host.is_string()) throw InputError(file.string() + ": a host must be a string");
    hosts.push_back(host.get<std::string>());
  }
  return hosts;
}

std::optional<ForecastRecord> forecast_of_file(const fs::path& file) {
  const std::string text = text_of_file(file);
  if (text.empty()) return std::nullopt;
  return parse_forecast(file.string(), text);
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Returns the last name of a path: "mine" of "runs/mine/".
std::string name_of_folder(fs::path folder) {
  if (!folder.has_filename()) folder = folder.parent_path();
  if (folder.filename() != "." && folder.filename() != "..") return folder.filename().string();
  std::error_code unknown;
  return fs::weakly_canonical(folder, unknown).filename().string();
}

}  // namespace

std::string RunRecord::recipe_value(const std::string& key) const {
  const auto found = std::find_if(recipe.begin(), recipe.end(), [&](const auto& entry) { return entry.first == key; });
  return found == recipe.end() ? "" : found->second;
}

int64_t RunRecord::num_ranks() const {
  int64_t ranks = 1;
  for (const auto& axis : mesh) ranks *= factor(axis);
  return ranks;
}

std::string RunRecord::mesh_text() const {
  std::string text;
  for (const auto& [axis, size] : mesh) text += (text.empty() ? "" : ",") + axis + "=" + std::to_string(size);
  return text;
}

std::string RunRecord::meshes_text() const {
  if (mesh_segments(starts).size() > 1) return "meshes " + meshes_of(starts);
  const std::string last = mesh_text();
  return last.empty() ? "" : "mesh " + last + ", " + counted(num_ranks(), "rank");
}

int64_t RunRecord::num_steps() const {
  return whole_number_of(recipe_value("train.steps"));
}

RunReader::RunReader(fs::path folder)
    : metrics_(folder / "metrics.jsonl"),
      log_(file_in(folder, "console.log", "log.txt")),
      events_(folder / "events.jsonl"),
      ledger_(folder / "goodput.jsonl") {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (status.type() == fs::file_type::not_found) throw InputError("there is no run directory " + folder.string());
  if (status.type() != fs::file_type::directory) {
    throw InputError(folder.string() + " is not a run directory" + (error ? ": " + error.message() : ": it is a file"));
  }
  if (!has(folder / "metrics.jsonl") && !has(folder / "recipe.yaml") && !has(folder / "console.log") &&
      !has(folder / "log.txt")) {
    throw InputError(
        folder.string() +
        " is not a run directory: it has no metrics.jsonl, recipe.yaml or console.log; give the folder that "
        "meshtrain train named, runs/NAME or its --run-dir");
  }
  record_.name = name_of_folder(folder);
  record_.folder = std::move(folder);
}

void RunReader::read_problems(const std::string& what, const std::function<void()>& action) try {
  action();
} catch (const std::exception& error) {
  record_.problems.push_back(what + ": " + error.what());
}

void RunReader::follow(LineFollower& file, const std::function<void()>& forget,
                       const std::function<void(std::string_view)>& add) {
  const auto begin_again = [&] {
    changed_ = true;
    forget();
  };
  file.read(begin_again, [&](std::string_view line) {
    changed_ = true;
    if (!line.empty()) add(line);
  });
}

bool RunReader::refresh() {
  changed_ = false;
  RunRecord& record = record_;
  const std::vector<std::string> problems = std::exchange(record.problems, {});
  const auto replace = [&](auto& value, auto now) {
    if (value == now) return;
    value = std::move(now);
    changed_ = true;
  };
  read_problems("metrics.jsonl", [&] {
    follow(
        metrics_, [&] { record.metrics = {}; }, [&](std::string_view line) { record.metrics.add(line); });
  });
  read_problems("console.log", [&] {
    follow(
        log_, [&] { record.warnings = {}; }, [&](std::string_view line) { record.warnings.add(line); });
  });
  read_problems("events.jsonl", [&] {
    follow(
        events_, [&] { record.events = {}; }, [&](std::string_view line) { record.events.add(line); });
  });
  read_problems("goodput.jsonl", [&] {
    follow(
        ledger_, [&] { record.ledger = {}; }, [&](std::string_view line) { record.ledger.add(line); });
  });
  if (changed_) record.starts = starts_of(record.events, record.ledger);
  read_problems("recipe.yaml", [&] { replace(record.recipe, keys_of_file(record.folder / "recipe.yaml")); });
  const fs::path decisions_file = file_in(record.folder, "decisions.yaml", "plan.yaml");
  const fs::path forecast_file = file_in(record.folder, "forecast.json", "plan.json");
  read_problems(decisions_file.filename(), [&] { replace(record.mesh, mesh_of(keys_of_file(decisions_file))); });
  read_problems("hosts.json", [&] { replace(record.hosts, hosts_of_file(record.folder / "hosts.json")); });
  read_problems(forecast_file.filename(), [&] { replace(record.forecast, forecast_of_file(forecast_file)); });
  read_problems("checkpoints", [&] { replace(record.checkpoints, list_checkpoints(record.folder / "checkpoints")); });
  replace(record.flight, files_in(record.folder / "flight"));

  const auto count = [&](int64_t number, const std::string& line, const std::string& what) {
    if (number > 0) record.problems.push_back(counted(number, line) + what);
  };
  count(record.metrics.num_damaged(), "damaged line", " of metrics.jsonl left out");
  count(metrics_.num_too_long(), "line", " of metrics.jsonl longer than 1 MiB left out");
  count(record.events.num_damaged(), "damaged line", " of events.jsonl left out");
  count(record.ledger.num_damaged(), "damaged line", " of goodput.jsonl left out");
  return changed_ || problems != record.problems;
}

}  // namespace meshtrain

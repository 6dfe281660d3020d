#include "runtime/program/forecast/forecast_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ranges>
#include <vector>

#include "mesh/base/size_text.h"
#include "runtime/program/recipe/pipeline.h"

namespace meshtrain {
namespace {

using nlohmann::ordered_json;

constexpr size_t kWidth = 100;

/// Returns "80 GiB a rank, the runtime's 2 GiB included".
std::string room_text(const ForecastRequest& request) {
  const std::string text = size_text(*request.memory) + " a rank";
  if (request.runtime_bytes() == 0) return text;
  return text + ", the runtime's " + size_text(request.runtime_bytes()) + " included";
}

/// Returns `words` in lines of at most kWidth columns, each after `indent`.
std::string wrapped(const std::vector<std::string>& words, const std::string& indent) {
  std::string text, line = indent;
  for (const std::string& word : words) {
    if (line.size() > indent.size() && line.size() + 1 + word.size() > kWidth) {
      text += line + "\n";
      line = indent;
    }
    line += (line.size() > indent.size() ? " " : "") + word;
  }
  return text + line + "\n";
}

std::vector<std::string> words_of(const std::string& sentence) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < sentence.size();) {
    const size_t end = std::min(sentence.find(' ', begin), sentence.size());
    words.push_back(sentence.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// A row of cells, of which the first is aligned to the left.
using Row = std::vector<std::string>;

/// Returns the rows as lines, each with its note, if any, on a line of its own below. Columns stand as far apart as
/// kWidth allows, 3 blanks at most.
std::string table(const std::vector<Row>& rows, const std::vector<std::string>& notes) {
  constexpr size_t kMostBlanks = 3;
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const size_t cells = std::accumulate(widths.begin(), widths.end(), size_t{2}), gaps = widths.size() - 1;
  const size_t room = kWidth > cells ? (kWidth - cells) / gaps : 1;
  const std::string gap(std::clamp(room, size_t{1}, kMostBlanks), ' ');
  std::string text;
  for (size_t nth = 0; nth < rows.size(); ++nth) {
    const Row& row = rows[nth];
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      line += i == 0 ? "  " + row[i] + blanks : gap + blanks + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n" + notes[nth];
  }
  return text;
}

std::string sent_text(int64_t bytes) {
  return bytes == 0 ? "-" : size_text(bytes);
}

std::string share_text(double part, double total) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * part / total);
  return text;
}

/// Returns the model FLOP/s of a rank as a share of the most that its device computes; "-" when that is not known.
std::string mfu_text(const MeshForecast& mesh, const ForecastRequest& request) {
  const double most = request.machine->peak_flops.of(request.dtype);
  if (request.machine->device != "cuda" || most <= 0) return "-";
  return share_text(mesh.forecast.step.model_flops, mesh.seconds() * most);
}

/// The least share of a step that is worth a word.
constexpr double kLeastShare = 0.005;

/// Returns the groups that computing waits for, "tp 38 %, dp 2 %", those for which it waits most first.
std::string waits_text(const MeshForecast& mesh) {
  constexpr size_t kMostGroups = 2;
  std::vector<std::pair<double, std::string>> waits;
  for (const auto& [group, seconds] : mesh.forecast.step.time->exposed) {
    if (seconds > kLeastShare * mesh.seconds()) waits.emplace_back(seconds, group);
  }
  const double copies = mesh.forecast.step.time->exposed_copies;
  if (copies > kLeastShare * mesh.seconds()) waits.emplace_back(copies, "copies");
  const double imbalance = mesh.forecast.step.time->imbalance;
  if (imbalance > kLeastShare * mesh.seconds()) waits.emplace_back(imbalance, "documents");
  std::ranges::sort(waits, std::greater());
  std::string text;
  for (size_t i = 0; i < std::min(waits.size(), kMostGroups); ++i) {
    text += (i == 0 ? "" : ", ") + waits[i].second + " " + share_text(waits[i].first, mesh.seconds());
  }
  return text.empty() ? "-" : text;
}

/// Returns the tokens that a rank trains with in a second, its share of the step's.
double tokens_per_second(const MeshForecast& mesh) {
  const TrainRecipe& train = mesh.recipe.train;
  return static_cast<double>(train.global_batch * train.sequence_length) /
         (mesh.seconds() * static_cast<double>(mesh.layout.size()));
}

/// Returns "8 hosts of 8 ranks (assumed)".
std::string hosts_text(const ForecastRequest& request) {
  return counted(request.num_hosts(), "host") + " of " +
         counted(std::min(request.ranks, request.hosts.ranks_per_host), "rank") +
         (request.assumes_hosts ? " (assumed)" : "");
}

/// Returns the sentences above a table, and what one column shows.
std::string heading(const MeshSearch& search, const ForecastRequest& request, int64_t fitting) {
  std::string text = counted(search.meshes.size(), "mesh", "meshes") + " of " + counted(request.ranks, "rank") + ", " +
                     hosts_text(request);
  if (request.memory) text += ", " + std::to_string(fitting) + " in " + room_text(request);
  if (!request.machine) {
    return "Ranked by traffic alone: without --machine the fastest mesh is not known.\n" +
           wrapped(words_of(text + "; bytes of the fullest rank, on " + (request.hosts.gpus ? "GPUs" : "CPUs") +
                            ", and the bytes that it sends in a step"),
                   "");
  }
  return wrapped(
      words_of(text + "; a step on " + request.machine->name + ", tokens/s of one " +
               (request.hosts.gpus ? "GPU" : "rank") + ", the bytes of the fullest rank, and the shares of its time"),
      "");
}

/// Returns where a machine's numbers come from.
std::string origin_text(const Machine& machine) {
  return machine.source.empty() ? "a machine file without a source" : machine.source;
}

/// Returns the lines below a table that state the assumptions of the forecast.
std::string assumptions(const ForecastRequest& request) {
  std::string text;
  if (request.machine) text += wrapped(words_of("times: " + origin_text(*request.machine)), "  ");
  if (!request.assumes_hosts) return text;
  return text + "  assumed: give --hosts-of N, the number of ranks on a host\n";
}

/// Returns a mesh's row in a table of times.
Row timed_row_of(const MeshForecast& mesh, const ForecastRequest& request) {
  const TimeForecast& time = *mesh.forecast.step.time;
  return {mesh.layout.describe(),
          seconds_text(mesh.seconds()),
          with_separators(std::llround(tokens_per_second(mesh))),
          mfu_text(mesh, request),
          size_text(mesh.forecast.step.memory().total()),
          share_text(time.products, mesh.seconds()),
          share_text(time.attention, mesh.seconds()),
          share_text(time.elementwise + time.optimizer, mesh.seconds()),
          mesh.pipeline.blocks.empty() ? "-" : share_text(time.bubble, mesh.seconds()),
          waits_text(mesh)};
}

Row row_of(const MeshForecast& mesh) {
  const StepMemory& memory = mesh.forecast.step.memory();
  const int64_t state = memory.parameters + memory.gathered + memory.gradients + memory.optimizer;
  const int64_t computing = memory.activations + memory.temporaries;
  return {mesh.layout.describe(),
          size_text(memory.total()),
          size_text(state),
          size_text(computing),
          size_text(memory.inputs + memory.exchange),
          sent_text(mesh.sent_on_host),
          sent_text(mesh.sent_among_hosts)};
}

/// Returns a line about the bytes that a rank keeps outside its device's memory; empty when it keeps none there.
std::string offload_note(const MeshForecast& mesh, const ForecastRequest& request) {
  const OffloadForecast& offload = mesh.forecast.step.offload;
  if (offload.is_empty()) return "";
  std::string text;
  if (offload.host > 0) text = size_text(offload.host) + " in host memory";
  if (offload.disk > 0) text = size_text(offload.disk) + " on disk";
  if (offload.copied() > 0) {
    text += ", " + size_text(offload.to_device) + " to the GPU and " + size_text(offload.to_host) + " back in a step";
  }
  if (offload.host_activations > 0) {
    text += (text.empty() ? "" : "; ") + size_text(offload.host_activations) + " of activations in host memory, " +
            size_text(offload.copied_activations) + " copied in a step";
  }
  const bool has_copies = offload.copied() + offload.copied_activations > 0;
  if (request.machine && has_copies && !request.machine->times_offload()) {
    text += "; the time includes neither copies nor updates: the machine file has no rates of the host";
  } else if (request.machine && offload.disk > 0 && (offload.copied() == 0 || request.machine->host.disk == 0)) {
    text += "; the time does not include the disk";
  }
  return wrapped(words_of("offloaded: " + text), "      ");
}

/// Returns a line about a mesh's stages; empty where pp is 1.
std::string stages_note(const MeshForecast& mesh) {
  return mesh.pipeline.blocks.empty() ? "" : wrapped(words_of(describe(mesh.pipeline)), "      ");
}

/// Returns the first of many, and how many more there are.
std::vector<std::string> abbreviated(std::vector<std::string> meshes) {
  constexpr size_t kShown = 8;
  if (meshes.size() <= kShown + 1) return meshes;
  const std::string more = std::to_string(meshes.size() - kShown);
  meshes.resize(kShown);
  meshes.insert(meshes.end(), {"and", more, "more"});
  return meshes;
}

/// Returns why a mesh takes its time: "71 % products, 20 % attention; 1 % waits for dp".
std::string account_of(const MeshForecast& mesh) {
  const TimeForecast& time = *mesh.forecast.step.time;
  std::string text = share_text(time.products, mesh.seconds()) + " of its step are products, " +
                     share_text(time.attention, mesh.seconds()) + " attention, " +
                     share_text(time.elementwise + time.optimizer, mesh.seconds()) + " other";
  if (time.bubble > 0) text += ", " + share_text(time.bubble, mesh.seconds()) + " waits for other stages";
  if (time.imbalance > 0) {
    text += ", " + share_text(time.imbalance, mesh.seconds()) + " waits for ranks with longer documents";
  }
  const auto most = std::ranges::max_element(time.exposed, {}, [](const auto& each) { return each.second; });
  if (most == time.exposed.end() || most->second <= kLeastShare * mesh.seconds()) return text;
  const int hosts = mesh.num_hosts(most->first);
  text += ", " + share_text(most->second, mesh.seconds()) + " waits for " + most->first;
  return text + (hosts > 1 ? ", whose groups span " + std::to_string(hosts) + " hosts" : "");
}

/// Returns how much longer a step takes: "1.5 times as long".
std::string factor_text(double factor) {
  char text[48];
  if (factor < 1.1) {
    std::snprintf(text, sizeof text, "%.1f %% longer", 100 * (factor - 1));
  } else {
    std::snprintf(text, sizeof text, "%.1f times as long", factor);
  }
  return text;
}

}  // namespace

std::string basis_text(const ForecastRequest& request) {
  return "; " + hosts_text(request) + (request.machine ? "; times: " + origin_text(*request.machine) : "");
}

std::string seconds_text(double seconds) {
  char text[32];
  const bool is_long = seconds >= 1;
  std::snprintf(text, sizeof text, is_long ? "%.3g s" : "%.3g ms", is_long ? seconds : 1000 * seconds);
  return text;
}

std::string left_out(const Recipe& recipe, int64_t ranks) {
  if (ranks == 1 || asks_for_pipelines(recipe) || recipe.model.shape.num_hidden_layers == 1) return "";
  return "meshes with pp are left out: --set parallel.mesh.pp=2, or another size above 1, adds them all";
}

std::string explain(const MeshSearch& search, const Recipe& recipe, const ForecastRequest& request) {
  const std::string ranks = counted(request.ranks, "rank"), others = left_out(recipe, request.ranks);
  if (search.meshes.empty()) {
    const ModelShape& shape = recipe.model.shape;
    const TrainRecipe& train = recipe.train;
    return "no mesh of " + ranks + " is possible: " + search.refused.front().reason + " (" +
           search.refused.front().meshes.front() + "); " + (asks_for_pipelines(recipe) ? "pp x " : "") +
           "dp x cp x tp is the number of ranks, dp has to divide " +
           std::to_string(train.global_batch / train.micro_batch) + " (train.global_batch / micro_batch), cp " +
           std::to_string(train.sequence_length) + " (train.sequence_length), tp " +
           std::to_string(
               std::gcd(std::gcd(shape.num_attention_heads, shape.num_key_value_heads), shape.intermediate_size)) +
           " (heads, key-value heads and intermediate_size of the model)";
  }
  const auto least =
      std::ranges::min(search.meshes, {}, [](const MeshForecast& mesh) { return mesh.forecast.step.memory().total(); });
  std::string text = "no mesh of " + ranks + " fits in " + room_text(request) + ": " + least.layout.describe() +
                     " needs the least, " + size_text(least.forecast.step.memory().total());
  ForecastRequest more = request;
  more.ranks *= 2;
  const std::optional<int64_t> enough = least_ranks(recipe, more);
  return text +
         (enough ? "; it would fit on " + counted(*enough, "rank")
                 : "; more ranks would not be enough either: train.activation_checkpointing.mode: full, a smaller "
                   "train.micro_batch or parallel.fsdp.mode: full_shard need less") +
         (others.empty() ? "" : "; " + others);
}

std::string advice(const MeshSearch& search) {
  const MeshForecast& best = search.meshes.front();
  if (!best.forecast.step.time) return "";
  std::string with;
  for (const std::string& setting : best.settings) with += (with.empty() ? " with " : ", ") + setting;
  std::string text = wrapped(words_of("take " + best.layout.describe() + with + ": " + account_of(best)), "  ");
  for (size_t i = 1; i < search.meshes.size(); ++i) {
    const bool is_last = i + 1 == search.meshes.size() || !search.meshes[i + 1].fits;
    const MeshForecast& other = search.meshes[i];
    if (!other.fits || (i != 1 && !is_last)) continue;
    text += wrapped(words_of(other.layout.describe() + " takes " + factor_text(other.seconds() / best.seconds()) +
                             ": " + account_of(other)),
                    "  ");
  }
  return text;
}

std::string to_text(const MeshSearch& search, const ForecastRequest& request, size_t top) {
  const auto fitting = static_cast<size_t>(std::ranges::count(search.meshes, true, &MeshForecast::fits));
  std::string text = heading(search, request, static_cast<int64_t>(fitting)) + "\n";
  if (!search.meshes.empty()) {
    std::vector<Row> rows = {{"mesh", "memory", "state", "computing", "other", "sent on its host", "among hosts"}};
    if (request.machine)
      rows = {{"mesh", "step", "tokens/s", "MFU", "memory", "products", "attention", "other", "bubble", "waits for"}};
    std::vector<std::string> notes(1);
    size_t shown = 0;
    for (const MeshForecast& mesh : search.meshes) {
      if (shown++ == top) break;
      rows.push_back(request.machine ? timed_row_of(mesh, request) : row_of(mesh));
      if (!mesh.fits) rows.back().front() += " *";
      notes.push_back((mesh.settings.empty() ? "" : wrapped(mesh.settings, "      ")) + stages_note(mesh) +
                      offload_note(mesh, request));
    }
    const auto has_stages = [](const MeshForecast& mesh) { return !mesh.pipeline.blocks.empty(); };
    if (request.machine && std::ranges::none_of(search.meshes | std::views::take(top), has_stages)) {
      for (Row& row : rows) row.erase(row.end() - 2);  // no bubble
    }
    text += table(rows, notes);
    if (fitting < std::min(search.meshes.size(), top)) text += "  * does not fit\n";
    if (search.meshes.size() > top) {
      text += "  and " + std::to_string(search.meshes.size() - top) + " more: --top shows them\n";
    }
  }
  text += assumptions(request);
  if (!search.refused.empty()) text += "\nnot possible:\n";
  for (const RefusedMeshes& refused : search.refused) {
    text += wrapped(words_of(refused.reason), "  ");
    text += wrapped(abbreviated(refused.meshes), "    ");
  }
  return text;
}

std::string stages_text(const MeshForecast& mesh, const std::vector<int64_t>& bytes) {
  return wrapped(words_of(mesh.layout.describe() + " is " + describe_stages(mesh.pipeline, bytes)), "  ");
}

std::string describe_stages(const PipelineChoice& pipeline, const std::vector<int64_t>& bytes) {
  std::vector<std::string> sizes;
  for (const int64_t each : bytes) sizes.push_back(size_text(each));
  return describe(pipeline) + "; the ranks along pp need " + enumerated(sizes);
}

std::string describe_worst_routing(const Decisions& decisions, const ForecastHosts& hosts) {
  const std::optional<RunForecast> worst = forecast_worst_routing(decisions, hosts);
  return worst ? "if all tokens choose the experts of one rank, " + describe_forecast(*worst) : "";
}

std::string worst_routing_text(const MeshForecast& mesh) {
  if (!mesh.worst_routing) return "";
  const StepForecast& step = mesh.worst_routing->step;
  return wrapped(
      words_of("if all tokens choose the experts of one rank, that rank of " + mesh.layout.describe() + " needs " +
               size_text(step.memory().total()) + " and sends " + sent_text(step.sent_bytes()) + " in a step"),
      "  ");
}

std::map<std::string, int64_t> memory_parts(const StepMemory& memory) {
  return {{"parameters", memory.parameters}, {"gathered", memory.gathered},       {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},   {"activations", memory.activations}, {"temporaries", memory.temporaries},
          {"inputs", memory.inputs},         {"exchange", memory.exchange}};
}

std::map<std::string, double> time_parts(const TimeForecast& time) {
  std::map<std::string, double> parts = {{"products", time.products},       {"attention", time.attention},
                                         {"elementwise", time.elementwise}, {"optimizer", time.optimizer},
                                         {"imbalance", time.imbalance},     {"copies", time.exposed_copies}};
  if (time.bubble > 0) parts["bubble"] = time.bubble;
  return parts;
}

std::map<std::string, int64_t> offload_parts(const OffloadForecast& offload) {
  return {{"host_bytes", offload.host},
          {"disk_bytes", offload.disk},
          {"copied_bytes", offload.copied()},
          {"to_device_bytes", offload.to_device},
          {"to_host_bytes", offload.to_host},
          {"host_activations_bytes", offload.host_activations},
          {"copied_activations_bytes", offload.copied_activations}};
}

std::string to_json(const MeshSearch& search, const ForecastRequest& request) {
  ordered_json meshes = ordered_json::array(), refused = ordered_json::array();
  for (const MeshForecast& mesh : search.meshes) {
    const StepMemory& memory = mesh.forecast.step.memory();
    ordered_json traffic = ordered_json::array();
    for (const auto& [key, sent] : mesh.forecast.step.traffic) {
      traffic.push_back({{"group", key.group},
                         {"purpose", key.purpose},
                         {"collective", name(key.kind)},
                         {"calls", sent.calls},
                         {"sent_bytes", sent.sent_bytes},
                         {"hosts", mesh.num_hosts(key.group)}});
    }
    meshes.push_back({{"mesh", mesh.layout.describe()},
                      {"settings", mesh.settings},
                      {"fits", mesh.fits},
                      {"rank", mesh.forecast.rank},
                      {"micro_batches", mesh.forecast.micro_batches},
                      {"memory_bytes", memory_parts(memory)},
                      {"memory_bytes_total", memory.total()},
                      {"sent_bytes_on_host", mesh.sent_on_host},
                      {"sent_bytes_among_hosts", mesh.sent_among_hosts},
                      {"traffic", std::move(traffic)}});
    if (!mesh.pipeline.blocks.empty()) meshes.back()["pipeline"] = describe(mesh.pipeline);
    if (mesh.worst_routing) {
      const StepForecast& step = mesh.worst_routing->step;
      meshes.back()["worst_routing"] = {{"memory_bytes", memory_parts(step.memory())},
                                        {"memory_bytes_total", step.memory().total()},
                                        {"sent_bytes", step.sent_bytes()}};
    }
    if (const OffloadForecast& offload = mesh.forecast.step.offload; !offload.is_empty()) {
      meshes.back()["offload"] = offload_parts(offload);
    }
    if (const std::optional<TimeForecast>& time = mesh.forecast.step.time) {
      meshes.back()["seconds"] = time->total();
      meshes.back()["tokens_per_second_per_rank"] = tokens_per_second(mesh);
      meshes.back()["model_flops"] = mesh.forecast.step.model_flops;
      ordered_json& parts = meshes.back()["seconds_by_part"] = time_parts(*time);
      parts["collectives"] = time->collectives;
      parts["exposed"] = time->exposed;
    }
  }
  for (const RefusedMeshes& each : search.refused) {
    refused.push_back({{"key", each.key}, {"reason", each.reason}, {"meshes", each.meshes}});
  }
  const ordered_json all = {{"ranks", request.ranks},
                            {"ranks_per_host", request.hosts.ranks_per_host},
                            {"assumes_hosts", request.assumes_hosts},
                            {"device", request.hosts.gpus ? "cuda" : "cpu"},
                            {"times", request.machine ? ordered_json(request.machine->source) : ordered_json()},
                            {"runtime_bytes", request.runtime_bytes()},
                            {"meshes", std::move(meshes)},
                            {"refused", std::move(refused)}};
  return all.dump(1);
}

}  // namespace meshtrain

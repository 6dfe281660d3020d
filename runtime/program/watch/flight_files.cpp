#include "runtime/program/watch/flight_files.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/json_object.h"
#include "mesh/base/files/late_write.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using Kind = Collective::Kind;

constexpr std::array kKinds = {Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll,
                               Kind::Exchange,  Kind::Broadcast, Kind::Barrier,       Kind::Message};

double seconds(Flight::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// Returns seconds since 1970, UTC; null for none.
json time_of_day(Flight::Clock::time_point time) {
  if (time == Flight::Clock::time_point{}) return nullptr;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count() - seconds(Flight::Clock::now() - time);
}

struct FlightFolder {
  std::filesystem::path folder;
  int rank = 0, num_ranks = 1;
};

std::mutex folder_mutex;
FlightFolder& flight_folder() {
  static auto* const folder = new FlightFolder;  // outlives threads that write there
  return *folder;
}

json line_of(const Flight& flight) {
  const size_t dims = std::min(static_cast<size_t>(flight.dims), flight.shape.size());
  return {
      {"number", flight.number},
      {"group", flight.group},
      {"in_group", flight.in_group},
      {"operation", name(flight.kind)},
      {"reduce", flight.reduce == Reduce::Max ? "max" : "sum"},
      {"dtype", c10::toString(flight.dtype)},
      {"dims", flight.dims},
      {"shape", std::vector<int64_t>(flight.shape.begin(), flight.shape.begin() + static_cast<std::ptrdiff_t>(dims))},
      {"from", flight.from},
      {"to", flight.to},
      {"bytes", flight.bytes},
      {"purpose", flight.purpose.text()},
      {"place", flight.work.text()},
      {"issued", time_of_day(flight.issued)},
      {"started", time_of_day(flight.started)},
      {"ended", time_of_day(flight.ended)},
      {"waited", seconds(flight.waited)}};
}

json line_of(const GroupFlights& group) {
  return {{"key", group.key},
          {"name", group.name},
          {"link", group.is_link},
          {"ranks", group.ranks},
          {"issued", group.issued},
          {"ended", group.ended},
          {"total_seconds", seconds(group.total)},
          {"exposed_seconds", seconds(group.exposed)}};
}

json line_of(int rank, int num_ranks, const Sighting& self) {
  const Activity& activity = self.activity;
  json line = {{"rank", rank},
               {"num_ranks", num_ranks},
               {"name", self.name.data()},
               {"host", self.host.data()},
               {"phase", self.phase.data()},
               {"phase_kind", name(self.phase_kind)},
               {"step", self.step},
               {"time", time_of_day(Flight::Clock::now())},
               {"still_seconds", static_cast<double>(activity.still_ms) / 1e3},
               {"halted_seconds", static_cast<double>(activity.halted_ms) / 1e3},
               {"awaited", nullptr}};
  if (activity.waits) line["awaited"] = {{"key", activity.awaited_group}, {"in_group", activity.awaited}};
  return line;
}

at::ScalarType dtype_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (name == c10::toString(dtype)) return dtype;
  }
  return at::ScalarType::Undefined;
}

Flight flight_of(const json& line) {
  Flight flight;
  flight.number = line.at("number");
  flight.group = line.at("group");
  flight.in_group = line.at("in_group");
  const std::string operation = line.at("operation");
  for (const Kind kind : kKinds) {
    if (operation == name(kind)) flight.kind = kind;
  }
  flight.reduce = line.at("reduce") == "max" ? Reduce::Max : Reduce::Sum;
  flight.dtype = dtype_named(line.at("dtype"));
  flight.dims = line.at("dims");
  const std::vector<int64_t> shape = line.at("shape");
  std::copy_n(shape.begin(), std::min(shape.size(), flight.shape.size()), flight.shape.begin());
  flight.from = line.at("from");
  flight.to = line.at("to");
  flight.bytes = line.at("bytes");
  flight.purpose = line.at("purpose").get<std::string>();
  flight.work = line.at("place").get<std::string>();
  return flight;
}

GroupLabel label_of(const json& line) {
  const json& ranks = line.at("ranks");
  GroupLabel label{line.at("name").get<std::string>()};
  if (line.value("link", false)) label.sender = ranks.at(0), label.receiver = ranks.at(1);
  return label;
}

/// Replaces the contents of `file`. Returns the problem; empty for none.
std::string replace(const std::filesystem::path& file, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  const std::filesystem::path partial = file.string() + ".tmp";
  std::ofstream out(partial, std::ios::trunc);
  out << text;
  out.close();
  if (out) std::filesystem::rename(partial, file, error);
  if (out && !error) return "";
  std::filesystem::remove(partial, error);
  return "it cannot be written";
}

using Members = std::map<int, std::vector<GroupSight>>;  // by rank: the groups that others say it is in

/// A rank's file.
struct RankFile {
  RankSight sight;
  int num_ranks = 0;
  double time = 0;
  Members members;
};

RankFile read_rank(const std::filesystem::path& file) {
  std::ifstream lines(file);
  RankFile read;
  RankSight& sight = read.sight;
  Activity& activity = sight.activity;
  std::vector<GroupSight> groups;
  std::string text;
  for (int number = 1; std::getline(lines, text); ++number) {
    const std::string subject = file.string() + ":" + std::to_string(number);
    const json line = parse_json_object(subject, text);
    try {
      if (line.contains("rank")) {
        sight.rank = line.at("rank");
        read.num_ranks = line.at("num_ranks");
        read.time = line.at("time");
        sight.name = line.at("name");
        sight.host = line.at("host");
        // Records of earlier versions have the text alone.
        sight.phase = {line.at("phase"), phase_kind_named(line.value("phase_kind", "")),
                       line.value("step", int64_t{0})};
        activity.still_ms = static_cast<int64_t>(line.at("still_seconds").get<double>() * 1e3);
        activity.halted_ms = static_cast<int64_t>(line.at("halted_seconds").get<double>() * 1e3);
        sight.runs = activity.halted_ms == 0;
        activity.waits = !line.at("awaited").is_null();
        if (activity.waits) {
          activity.awaited_group = line.at("awaited").at("key");
          activity.awaited = line.at("awaited").at("in_group");
        }
      } else if (line.contains("key")) {
        GroupSight& group = groups.emplace_back();
        group.key = line.at("key");
        group.label = label_of(line);
        group.issued = line.at("issued");
        group.ended = line.at("ended");
        for (const int rank : line.at("ranks")) read.members[rank].push_back({group.key, group.label});
      } else {
        const Flight flight = flight_of(line);
        GroupSight& group = groups.at(static_cast<size_t>(flight.group));
        if (line.at("ended").is_null() && group.pending.number == 0) group.pending = flight;
        if (group.key == activity.awaited_group && flight.in_group == activity.awaited)
          activity.awaited_flight = flight;
        activity.last = group;
        activity.last.pending = flight;
      }
    } catch (const std::exception& error) {
      throw InputError(subject + " is not a line of a flight record: " + error.what());
    }
  }
  if (sight.name.empty()) throw InputError(file.string() + " cannot be read, or is empty");
  std::stable_sort(groups.begin(), groups.end(), [](const GroupSight& a, const GroupSight& b) {
    return a.pending.number != 0 && b.pending.number == 0;
  });
  activity.num_groups = static_cast<int64_t>(std::min(groups.size(), Activity::kGroups));
  std::copy_n(groups.begin(), activity.num_groups, activity.groups.begin());
  return read;
}

}  // namespace

std::filesystem::path flight_file(const std::filesystem::path& folder, int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%05d.jsonl", rank);
  return folder / name;
}

void keep_flights_in(const std::filesystem::path& folder, int rank, int num_ranks) {
  const std::lock_guard lock(folder_mutex);
  flight_folder() = {folder, rank, num_ranks};
}

bool write_flights(const Sighting& self) {
  FlightFolder where;
  {
    const std::lock_guard lock(folder_mutex);
    where = flight_folder();
  }
  if (where.folder.empty()) return false;
  std::string text;
  const auto add = [&](const json& line) {
    text += line.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace) + '\n';
  };
  add(line_of(where.rank, where.num_ranks, self));
  for (const GroupFlights& group : FlightRecorder::own().groups()) add(line_of(group));
  for (const Flight& flight : FlightRecorder::own().flights()) add(line_of(flight));

  const std::filesystem::path file = flight_file(where.folder, where.rank);
  return write_late([=] { return replace(file, text); }).empty();
}

Flights read_flights(const std::filesystem::path& folder) {
  std::vector<RankFile> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::filesystem::path& file = entry.path();
    if (file.extension() == ".jsonl" && file.stem().string().starts_with("rank-")) files.push_back(read_rank(file));
  }
  if (files.empty()) {
    throw NoFlights(folder.string() +
                    " has no flight records: they are written when a run fails, when it makes no progress for "
                    "parallel.timeout, and on SIGQUIT");
  }
  const auto newest = std::max_element(files.begin(), files.end(),
                                       [](const RankFile& a, const RankFile& b) { return a.time < b.time; });
  const int num_ranks = newest->num_ranks;
  Flights flights;
  flights.time = newest->time;
  std::vector<RankSight>& ranks = flights.ranks;
  Members members;
  for (const RankFile& file : files) {
    if (file.num_ranks != num_ranks) continue;
    ranks.push_back(file.sight);
    for (const auto& [rank, groups] : file.members) {
      members[rank].insert(members[rank].end(), groups.begin(), groups.end());
    }
  }
  for (const auto& [rank, groups] : members) {
    const auto has_file = [rank = rank](const RankSight& sight) { return sight.rank == rank; };
    if (std::any_of(ranks.begin(), ranks.end(), has_file)) continue;
    RankSight& silent = ranks.emplace_back();
    silent.rank = rank;
    silent.name = "rank " + std::to_string(rank);
    silent.host = "an unknown host";
    silent.phase.text = "an unknown phase, because it wrote no flight record";
    silent.has_record = silent.runs = false;
    for (const GroupSight& group : groups) {
      const bool is_new = silent.activity.find(group.key) == nullptr;
      if (!is_new || silent.activity.num_groups == Activity::kGroups) continue;
      silent.activity.groups[static_cast<size_t>(silent.activity.num_groups++)] = group;
    }
  }
  std::sort(ranks.begin(), ranks.end(), [](const RankSight& a, const RankSight& b) { return a.rank < b.rank; });
  return flights;
}

}  // namespace meshtrain

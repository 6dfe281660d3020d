#include "runtime/program/profile/trace_file.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace meshtrain {
namespace {

using nlohmann::ordered_json;
using std::chrono::duration_cast;
using std::chrono::nanoseconds;

// Numbers of tracks stand where no thread's number does. Each rank has its own, so that traces can be put together.
constexpr int64_t kFirstTrack = 1'000'000'000, kTracksOfARank = 100;
// The same for the numbers of arrows between operators: viewers join the ends that have one number.
constexpr int64_t kArrowsOfARank = 1'000'000'000;

int64_t whole_number_after(const std::string& text, std::string_view key) {
  const size_t found = text.find(key);
  int64_t number = 0;
  if (found == std::string::npos) throw std::runtime_error("the trace has no " + std::string(key));
  const size_t begin = text.find_first_of("-0123456789", found + key.size());
  if (begin == std::string::npos) throw std::runtime_error("the trace has no number after " + std::string(key));
  std::from_chars(text.data() + begin, text.data() + text.size(), number);
  return number;
}

/// Replaces the name that Kineto gives to the process, that of the program.
void rename_process(std::string& trace, const std::string& name) {
  constexpr std::string_view kName = "\"name\": \"";
  const size_t arguments = trace.find("\"args\"", trace.find("\"process_name\""));
  const size_t found = trace.find(kName, arguments);
  if (arguments == std::string::npos || found == std::string::npos) return;
  const size_t begin = found + kName.size();
  trace.replace(begin, trace.find('"', begin) - begin, name);
}

/// Names the track of Kineto's own span after the rank.
void rename_span(std::string& trace, int64_t rank) {
  constexpr std::string_view kTrack = "\"tid\": \"PyTorch Profiler";
  const size_t found = trace.find(kTrack);
  if (found != std::string::npos) trace.insert(found + kTrack.size(), " of rank " + std::to_string(rank));
}

/// Returns the trace with numbers of arrows ("ph": s, t, f) that are this rank's own.
std::string with_own_arrows(const std::string& trace, int64_t rank) {
  constexpr std::string_view kPhase = "\"ph\": \"", kId = "\", \"id\": ";
  std::string text;
  text.reserve(trace.size() + trace.size() / 64);
  size_t kept = 0;
  for (size_t at = trace.find(kId); at != std::string::npos; at = trace.find(kId, at + 1)) {
    const size_t phase = at - 1, begin = at + kId.size();  // one letter
    const bool is_arrow = phase >= kPhase.size() &&
                          std::string_view("stf").find(trace[phase]) != std::string_view::npos &&
                          trace.compare(phase - kPhase.size(), kPhase.size(), kPhase) == 0;
    int64_t number = 0;
    const auto end = std::from_chars(trace.data() + begin, trace.data() + trace.size(), number).ptr;
    if (!is_arrow || end == trace.data() + begin) continue;
    text.append(trace, kept, begin - kept).append(std::to_string(rank * kArrowsOfARank + number));
    kept = static_cast<size_t>(end - trace.data());
  }
  return text.append(trace, kept);
}

class TrackWriter {
 public:
  TrackWriter(const TraceTracks& tracks, int64_t base, int64_t process)
      : tracks_(tracks), base_(base), process_(process) {}

  std::string events() {
    add_steps();
    add_collectives();
    return std::exchange(text_, {});
  }

 private:
  void add(const ordered_json& event) { text_ += ",\n  " + event.dump(); }

  void add_metadata(const char* what, int64_t track, const ordered_json& arguments) {
    add({{"ph", "M"}, {"name", what}, {"pid", process_}, {"tid", track}, {"args", arguments}});
  }

  int64_t begin_track(const std::string& name) {
    const int64_t track = kFirstTrack + tracks_.rank * kTracksOfARank + num_tracks_++;
    add_metadata("thread_name", track, {{"name", name}});
    add_metadata("thread_sort_index", track, {{"sort_index", num_tracks_ - kTracksOfARank}});  // above the threads
    return track;
  }

  /// Returns a time of the trace: microseconds since its base.
  double time(Flight::Clock::time_point at) const {
    const int64_t since_zero = duration_cast<nanoseconds>(at.time_since_epoch()).count();
    return static_cast<double>(tracks_.clock_zero - base_ + since_zero) / 1e3;
  }

  void add_slice(int64_t track, const std::string& category, const std::string& name, Flight::Clock::time_point begin,
                 Flight::Clock::time_point end, const ordered_json& arguments = ordered_json::object()) {
    const double length = std::chrono::duration<double, std::micro>(std::max(end, begin) - begin).count();
    add({{"ph", "X"},
         {"cat", category},
         {"name", name},
         {"pid", process_},
         {"tid", track},
         {"ts", time(begin)},
         {"dur", length},
         {"args", arguments}});
  }

  void add_steps() {
    const int64_t track = begin_track("steps");
    for (const TracedStep& step : tracks_.steps) {
      add_slice(track, "step", "step " + std::to_string(step.step), step.begun, step.ended);
    }
    if (tracks_.steps.empty()) return;
    add_works(track, "action", tracks_.flights.actions);
    add_works(track, "work", tracks_.flights.works);
  }

  void add_works(int64_t track, const std::string& category, const std::vector<TracedWork>& works) {
    for (const TracedWork& work : works) {
      // One that was going on at the begin or the end of the trace lies partly outside of it.
      const auto begin = std::max(work.begun, tracks_.steps.front().begun);
      const auto end = std::min(work.ended, tracks_.steps.back().ended);
      if (begin < end) add_slice(track, category, work.name.text(), begin, end);
    }
  }

  void add_collectives() {
    std::map<int32_t, int64_t> track_of;
    std::map<int32_t, Flight::Clock::time_point> end_of;  // of the last of each group
    std::map<std::string, int> times;
    for (const Flight& flight : tracks_.flights.flights) {
      if (flight.ended == Flight::Clock::time_point{}) continue;  // it goes on
      const GroupFlights& group = tracks_.groups.at(static_cast<size_t>(flight.group));
      const auto [found, is_new] = track_of.try_emplace(flight.group);
      if (is_new) {
        const int nth = ++times[group.name];
        const std::string what = group.is_link ? "messages " : "collectives ";
        found->second = begin_track(what + group.name + (nth > 1 ? " (" + std::to_string(nth) + ")" : ""));
      }
      // Slices of a track may not overlap; a group runs its collectives one after the other.
      Flight::Clock::time_point& before = end_of[flight.group];
      const auto begin = std::max(flight.started, before);
      before = std::max(flight.ended, begin);
      std::string ranks;
      for (const int rank : group.ranks) ranks += (ranks.empty() ? "" : " ") + std::to_string(rank);
      // A message is known by its place: "micro-batch 5, input of stage 1".
      const bool has_place = group.is_link && !flight.work.text().empty();
      const std::string name =
          has_place ? flight.work.text() : meshtrain::name(flight.kind) + (" " + flight.purpose.text());
      add_slice(found->second, "collective", name, begin, before,
                {{"collective", describe(flight)},
                 {"purpose", flight.purpose.text()},
                 {"bytes", flight.bytes},
                 {"number in group", flight.in_group},
                 {"place", flight.work.text()},
                 {"ranks", ranks},
                 {"issued before start, us",
                  std::chrono::duration<double, std::micro>(flight.started - flight.issued).count()},
                 {"host waited, us", std::chrono::duration<double, std::micro>(flight.waited).count()}});
    }
  }

  const TraceTracks& tracks_;
  int64_t base_;
  int64_t process_;
  int64_t num_tracks_ = 0;
  std::string text_;
};

}  // namespace

int64_t clock_zero() {
  const auto before = Flight::Clock::now();
  const auto wall = std::chrono::system_clock::now();
  const auto after = Flight::Clock::now();
  const auto steady = before.time_since_epoch() + (after - before) / 2;
  return duration_cast<nanoseconds>(wall.time_since_epoch()).count() - duration_cast<nanoseconds>(steady).count();
}

// Inserts the events after the last one, in the text: as a tree of values, the trace of a large model takes a gigabyte.
std::string with_tracks(std::string kineto, const TraceTracks& tracks) {
  const int64_t base = whole_number_after(kineto, "\"baseTimeNanoseconds\":");
  const int64_t process = whole_number_after(kineto, "\"pid\":");
  if (tracks.rank > 0) kineto = with_own_arrows(kineto, tracks.rank);
  const size_t last = kineto.rfind("\"Record Window End\"");
  const size_t end = last == std::string::npos ? last : kineto.find('}', last);
  if (end == std::string::npos) throw std::runtime_error("the trace of LibTorch has no end of its events");
  kineto.insert(end + 1, TrackWriter(tracks, base, process).events());
  rename_process(kineto, tracks.name);
  rename_span(kineto, tracks.rank);
  return kineto;
}

}  // namespace meshtrain

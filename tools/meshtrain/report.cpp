#include "tools/meshtrain/report.h"

#include <atomic>
#include <chrono>
#include <cstdio>

#include "mesh/agree.h"
#include "mesh/backends/mpi/mpi.h"
#include "mesh/base/error.h"
#include "mesh/base/log.h"
#include "mesh/base/progress.h"
#include "mesh/device/error_message.h"
#include "mesh/host_map.h"
#include "runtime/program/telemetry/events.h"
#include "runtime/program/watch/host_connections.h"
#include "runtime/program/watch/phase.h"
#include "runtime/program/watch/watch.h"
#include "tools/meshtrain/commands.h"

namespace meshtrain {
namespace {

/// Returns `text` as one line, below which the items of a list have lines of their own: those that two spaces indent.
std::string one_message(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 || c == 0x7f) && text.compare(i, 3, "\n  ") != 0) text[i] = ' ';
  }
  return text;
}

/// Appends a failure to the events of the run. `rank`: the one that fails; -1: all alike.
void keep_failure(const Failure& failure, int64_t rank) {
  const PhaseState phase = Phase::failed();
  RankFailure event{.phase = name(phase.kind), .step = phase.step, .during = phase.text, .message = failure.message};
  if (rank >= 0) event.ranks = {static_cast<int>(rank)}, event.host = host_name();
  append_failed(event);
}

}  // namespace

Failure describe_failure(const std::exception& error, const std::string& rank) {
  if (dynamic_cast<const InputError*>(&error) != nullptr) return {one_message(error.what()), 2};
  const std::string what = one_message(message_of(error));
  const bool says_where = rank.empty() || dynamic_cast<const NamesRank*>(&error) != nullptr;
  return {says_where ? what : rank + ": " + what, 1};
}

bool print_failure(const Failure& failure) {
  static std::atomic<bool> printed = false;
  if (printed.exchange(true)) return false;
  std::fflush(stdout);
  log_failure(failure.message);
  return true;
}

void report_failure(const Group& world, const std::exception& error) {
  const bool alone = !is_agreed(error);
  if (alone) Watch::excuse();
  const bool is_refusal = dynamic_cast<const InputError*>(&error) != nullptr;
  if (alone || world.rank() == 0) {
    const Failure failure = describe_failure(error, alone && world.size() > 1 ? world.coordinate_text() : "");
    if (print_failure(failure) && !is_refusal) keep_failure(failure, alone ? world.rank() : -1);
  }
  if (!is_refusal) Watch::keep_last_flights();
  if (alone && world.size() > 1) abort_mpi(1);
}

int run_on_all_ranks(const Group& world, const std::function<int()>& body) {
  if (world.size() == 1) return body();
  if (world.rank() > 0) Progress::mute();
  const Watch watch(world);
  try {
    const int status = body();
    const Phase phase("its end");
    meet_at_end();
    return status;
  } catch (const InputError& error) {
    report_failure(world, error);
    if (meet_at_end(agreement_limit(error, std::chrono::milliseconds(silence_limit()) / 3)))
      return describe_failure(error, "").status;
    Watch::excuse();
    print_failure({world.coordinate_text() + " alone: " + describe_failure(error, "").message});
    abort_mpi(describe_failure(error, "").status);
  } catch (const std::exception& error) {
    report_failure(world, error);
    meet_at_end();
    return describe_failure(error, "").status;
  }
}

}  // namespace meshtrain

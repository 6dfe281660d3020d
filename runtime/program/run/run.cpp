#include "runtime/program/run/run.h"

#include <chrono>

#include "runtime/program/run/session.h"

namespace meshtrain {
namespace {

/// Runs `work`. Reports its error with options.on_failure before destructors, which may take long, run.
template <class Work>
auto report_first(const RunOptions& options, const Work& work) -> decltype(work()) try {
  return work();
} catch (const std::exception& error) {
  if (options.on_failure) options.on_failure(error);
  throw;
}

}  // namespace

RunEnd run(const Recipe& recipe, const Group& world, const RunOptions& options, const StopRequest& stop_request) {
  const auto start = std::chrono::steady_clock::now();
  Session session(recipe, world, options);
  session.resume();
  session.announce();
  return report_first(options, [&] {
    const RunEnd end = session.train(stop_request, start);
    if (end == RunEnd::Done) session.export_weights();
    session.close(end);
    return end;
  });
}

}  // namespace meshtrain

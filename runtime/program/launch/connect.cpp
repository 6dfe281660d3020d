#include "runtime/program/launch/connect.h"

#include <numeric>

#include "mesh/agree.h"
#include "mesh/backends/mpi/launcher.h"
#include "mesh/backends/mpi/mpi.h"
#include "mesh/flight_recorder.h"
#include "runtime/program/launch/threads.h"
#include "runtime/program/launch/variables.h"

namespace meshtrain {
namespace {

std::string threads;

Group connect_launched() {
  std::shared_ptr<Backend> backend = mpi_backend();
  std::vector<int64_t> ranks(backend->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  backend = record_flights(std::move(backend), FlightRecorder::own(), "world", {ranks.begin(), ranks.end()});
  const std::string place = "rank " + std::to_string(backend->rank());
  return Group(std::move(backend), "world", std::move(ranks), place);
}

}  // namespace

Group connect_world() {
  Group world = launched_by_mpi() ? connect_launched() : Group();
  agree(world, [] { check_variables(); });
  threads = set_threads(world);
  return world;
}

const std::string& threads_taken() {
  return threads;
}

}  // namespace meshtrain

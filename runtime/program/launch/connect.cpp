#include "runtime/program/launch/connect.h"

#include "mesh/agree.h"
#include "mesh/connect.h"
#include "runtime/program/launch/threads.h"
#include "runtime/program/launch/variables.h"

namespace meshtrain {
namespace {

std::string threads;

}  // namespace

Group connect_world() {
  Group world = connect_ranks();
  agree(world, [] { check_variables(); });
  threads = set_threads(world);
  return world;
}

const std::string& threads_taken() {
  return threads;
}

}  // namespace meshtrain

// Ranks that issue collectives, or messages of pipelines (message_KIND), of which one makes a mistake:
// collective_faults KIND RANK, under mpirun. The watch has to end it; exit status 3 when nothing was wrong, 4 when the
// mistake passed unseen.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "mesh/link.h"
#include "runtime/program/launch/connect.h"
#include "runtime/program/watch/phase.h"
#include "runtime/program/watch/stall_limits.h"
#include "runtime/program/watch/watch.h"

using namespace meshtrain;

namespace {

constexpr int kSteps = 40, kMistake = 20;
const StallLimits kLimits{.warning = std::chrono::seconds(1), .timeout = std::chrono::seconds(3)};

void sum(const Group& group, const std::string& purpose, int64_t numel = 64) {
  at::Tensor tensor = at::ones({numel});
  group.with_purpose(purpose).all_reduce(tensor).wait();
}

void gather(const Group& group, const std::string& purpose) {
  at::Tensor all = at::empty({64 * group.size()});
  group.with_purpose(purpose).all_gather(all, at::ones({64})).wait();
}

/// Sends activations through the stages of a pipeline, and gradients back. Mistakes: sleep; skip: sends no activation;
/// order: waits for the gradient before it sends the activation that the gradient is of.
void pass_on(const std::vector<Link>& down, const std::vector<Link>& up, int rank, const std::string& mistake) {
  if (mistake == "sleep") std::this_thread::sleep_for(std::chrono::minutes(5));  // the watch ends it before
  const auto send = [](const Link& link, const char* purpose) {
    link.with_purpose(purpose).send(at::ones({64})).wait();
  };
  const auto receive = [](const Link& link, const char* purpose) {
    at::Tensor tensor = at::empty({64});
    link.with_purpose(purpose).receive(tensor).wait();
  };
  const auto i = static_cast<size_t>(rank);
  if (i > 0) receive(down[i - 1], "pp.activations");
  if (i < down.size() && mistake == "order") receive(up[i], "pp.input_gradients");
  if (i < down.size() && mistake != "skip") send(down[i], "pp.activations");
  if (i < down.size() && mistake != "order") receive(up[i], "pp.input_gradients");
  if (i > 0) send(up[i - 1], "pp.input_gradients");
}

int run_pipeline(const std::string& kind, int culprit, const Group& world) {
  const DeviceMesh mesh(MeshLayout({{"pp", world.size()}}), world);
  set_rank_name(mesh.world().coordinate_text());
  std::vector<Link> down, up;
  for (int rank = 0; rank + 1 < world.size(); ++rank) {
    down.emplace_back(mesh.group("pp"), rank, rank + 1);
    up.emplace_back(mesh.group("pp"), rank + 1, rank);
  }
  const StallGuard guard([] { return kLimits; });
  for (int step = 1; step <= kSteps; ++step) {
    const Phase phase("step " + std::to_string(step));
    pass_on(down, up, world.rank(), step == kMistake && world.rank() == culprit ? kind : "");
    sum(mesh.world(), "vote");
  }
  return 4;
}

int run(const std::string& kind, int culprit) {
  const Group world = connect_world();
  const Watch watch(world);
  const std::string of_pipeline = "message_";
  if (kind.starts_with(of_pipeline)) return run_pipeline(kind.substr(of_pipeline.size()), culprit, world);
  const int64_t n = world.size();
  const DeviceMesh mesh(MeshLayout({{"dp", n / 2}, {"cp", 1}, {"tp", 2}}), world);
  set_rank_name(mesh.world().coordinate_text());
  const StallGuard guard([] { return kLimits; });
  const Group &tp = mesh.group("tp"), &all = mesh.world();
  for (int step = 1; step <= kSteps; ++step) {
    const Phase phase("step " + std::to_string(step));
    const std::string mistake = step == kMistake && world.rank() == culprit ? kind : "";
    if (mistake == "sleep") std::this_thread::sleep_for(std::chrono::minutes(5));  // the watch ends it before
    if (mistake == "operation") {
      gather(tp, "tp.linear");
    } else if (mistake == "order") {
      sum(all, "vote");
      sum(tp, "tp.linear");
      continue;
    } else if (mistake != "skip") {
      sum(tp, "tp.linear", mistake == "shape" ? 128 : 64);
    }
    sum(all, "vote");
  }
  return kind == "none" ? 3 : 4;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  return run(argv[1], std::stoi(argv[2]));
} catch (const std::exception& error) {
  std::fprintf(stderr, "collective_faults: %s\n", error.what());
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the other rank of the collective has found it too
  abort_mpi(5);
}

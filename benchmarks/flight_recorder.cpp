// Measures the cost of recording every collective: steps of one model on ranks whose collectives are recorded, and on ranks
// whose are not, in turns.
//   tools/ranks N build/release/benchmarks/flight_recorder_benchmark [STEPS]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/flight_recorder.h"
#include "runtime/trainer/trainer.h"

namespace {

using namespace meshtrain;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

Recipe recipe_of(int64_t ranks) {
  Recipe recipe;
  ModelShape& shape = recipe.model.shape;
  shape.hidden_size = 256;
  shape.intermediate_size = 768;
  shape.num_hidden_layers = 6;
  shape.num_attention_heads = shape.num_key_value_heads = 8;
  shape.head_dim = 32;
  shape.vocab_size = 4096;
  recipe.parallel.mesh = {{"tp", ranks}};
  recipe.train.sequence_length = 256;
  recipe.train.global_batch = recipe.train.micro_batch = 2;
  return recipe;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const int num_steps = argc > 1 ? std::atoi(argv[1]) : 60;
  const auto world_of = [](bool recorded) {
    std::shared_ptr<Backend> backend = mpi_backend();
    std::vector<int64_t> ranks(static_cast<size_t>(backend->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const std::string place = "rank " + std::to_string(backend->rank());
    if (recorded) backend = record_flights(backend, FlightRecorder::own(), "world", {ranks.begin(), ranks.end()});
    return Group(backend, "world", ranks, place);
  };
  const Group plain = world_of(false), recorded = world_of(true);
  const int64_t n = plain.size();
  const Recipe recipe = recipe_of(n);
  const MeshLayout layout({{"dp", 1}, {"cp", 1}, {"tp", n}});
  const DeviceMesh plain_mesh(layout, plain), recorded_mesh(layout, recorded);
  Trainer without(recipe, plain_mesh, at::kCPU), with(recipe, recorded_mesh, at::kCPU);
  const StepBatch batch = made_step(recipe, without.layout(), 1, at::kCPU);
  const int64_t counted = without.count_tokens(batch);

  std::vector<double> times[2], calls[2];
  at::Tensor vote = at::ones({5}, at::kDouble);
  for (int step = 0; step < num_steps; ++step) {
    for (const int is_recorded : {step % 2, 1 - step % 2}) {
      Trainer& trainer = is_recorded ? with : without;
      const Group& world = is_recorded ? recorded : plain;
      plain.barrier();
      Clock::time_point begin = Clock::now();
      trainer.step(batch, counted, {1e-4}).read();
      times[is_recorded].push_back(milliseconds_since(begin));
      plain.barrier();
      begin = Clock::now();
      for (int i = 0; i < 100; ++i) world.all_reduce(vote).wait();
      calls[is_recorded].push_back(10 * milliseconds_since(begin));
    }
  }
  const int64_t flights = FlightRecorder::own().flights().back().number / num_steps - 100;
  if (plain.rank() == 0) {
    std::printf("| %d | %.1f | %.3f | %.1f | %.1f | %d |\n", static_cast<int>(n), median(times[0]),
                median(times[1]) / median(times[0]), median(calls[0]), median(calls[1]), static_cast<int>(flights));
  }
  return 0;
}

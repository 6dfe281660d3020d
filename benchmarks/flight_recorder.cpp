// Measures the cost of recording every collective, and of the watch, whose thread shows each rank to the others. Runs
// steps of one model with both and with neither, alternating every few steps. Measures the processor time of a recorded
// call, of a part of the work that is shown to the others (a unit's forward or backward), and of the watch of a
// sleeping rank.
//   tools/ranks N build/release/benchmarks/flight_recorder_benchmark [STEPS]
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/device/aten.h"
#include "mesh/flight_recorder.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/watch/stall_limits.h"
#include "runtime/program/watch/watch.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace {

using namespace meshtrain;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// Returns the processor time of this process, in seconds.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Returns the processor time of this thread, in seconds.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
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
    const std::string coordinate = "rank " + std::to_string(backend->rank());
    if (recorded) backend = record_flights(backend, FlightRecorder::own(), {"world"}, {ranks.begin(), ranks.end()});
    return Group(backend, "world", ranks, coordinate);
  };
  const Group plain = world_of(false), recorded = world_of(true);
  const int64_t n = plain.size();
  const Recipe recipe = recipe_of(n);
  const MeshLayout layout({{"dp", 1}, {"cp", 1}, {"tp", n}});
  const DeviceMesh plain_mesh(layout, plain), recorded_mesh(layout, recorded);
  TransformerTrainer without(resolve(recipe, plain_mesh.layout()), plain_mesh, at::kCPU),
      with(resolve(recipe, recorded_mesh.layout()), recorded_mesh, at::kCPU);
  const StepBatch batch = made_step(without.options(), without.layout(), 1, at::kCPU);
  const int64_t counted = without.count_tokens(batch);

  constexpr int kTurn = 4;  // steps
  std::vector<double> times[2], calls[2], quotients, processor_quotients;
  at::Tensor vote = at::ones({5}, at::kDouble);
  int64_t flights = 0;
  for (int turn = 0; turn < num_steps / kTurn; ++turn) {
    double seconds[2] = {}, processor[2] = {};
    for (const int is_watched : {turn % 2, 1 - turn % 2}) {
      TransformerTrainer& trainer = is_watched ? with : without;
      const Group& world = is_watched ? recorded : plain;
      std::optional<Watch> watch;
      std::optional<StallGuard> guard;
      if (is_watched) {
        watch.emplace(plain);
        guard.emplace([] { return StallLimits{}; });
      }
      trainer.step(batch, counted, {1e-4}).read();  // not counted: the other trainer's tensors are in the caches
      plain.barrier();
      const int64_t before = is_watched ? FlightRecorder::own().last()->number : 0;
      const Clock::time_point all = Clock::now();
      const double processor_before = processor_seconds();
      for (int i = 0; i < kTurn; ++i) {
        const Clock::time_point begin = Clock::now();
        trainer.step(batch, counted, {1e-4}).read();
        times[is_watched].push_back(milliseconds_since(begin));
      }
      seconds[is_watched] = milliseconds_since(all);
      processor[is_watched] = processor_seconds() - processor_before;
      if (is_watched) flights = (FlightRecorder::own().last()->number - before) / kTurn;
      plain.barrier();
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < 100; ++i) world.all_reduce(vote).wait();
      calls[is_watched].push_back(10 * milliseconds_since(begin));
      plain.barrier();
    }
    quotients.push_back(seconds[1] / seconds[0]);
    processor_quotients.push_back(processor[1] / processor[0]);
  }

  double watch_share = 0, of_call = 0, of_work = 0;
  if (n > 1) {
    const Watch watch(plain);
    const StallGuard guard([] { return StallLimits{}; });
    const double before = processor_seconds();
    std::this_thread::sleep_for(std::chrono::seconds(5));
    watch_share = (processor_seconds() - before) / 5;
    plain.barrier();
    constexpr int kTimes = 20000;
    const auto microseconds_of = [&](const auto& action) {
      const double start = thread_seconds();
      for (int i = 0; i < kTimes; ++i) action();
      return 1e6 * (thread_seconds() - start) / kTimes;
    };
    FlightRecorder& recorder = FlightRecorder::own();
    const int32_t group = recorder.add_group({"tried"}, {0, 1});
    const Collective collective{.kind = Collective::Kind::AllReduce, .output = vote, .input = {}, .purpose = "tried"};
    of_call = microseconds_of([&] {
      const int64_t number = recorder.issue(group, collective);
      recorder.start(number);
      recorder.begin_wait(number);
      recorder.end(number);
      recorder.end_wait(number);
    });
    of_work = microseconds_of([&] { recorder.set_work("forward of block 3"); });
    plain.barrier();
  }
  if (plain.rank() == 0) {
    std::sort(quotients.begin(), quotients.end());
    std::printf("| %d | %.1f | %.3f (%.3f to %.3f) | %.3f | %.1f | %.1f | %d | %.2f | %.2f | %.2f %% |\n",
                static_cast<int>(n), median(times[0]), median(quotients), quotients[quotients.size() / 4],
                quotients[quotients.size() * 3 / 4], median(processor_quotients), median(calls[0]), median(calls[1]),
                static_cast<int>(flights), of_call, of_work, 100 * watch_share);
  }
  return 0;
}

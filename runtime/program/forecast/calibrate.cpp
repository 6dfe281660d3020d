#include "runtime/program/forecast/calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "mesh/agree.h"
#include "mesh/base/available_memory.h"
#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "mesh/host_map.h"
#include "runtime/program/forecast/forecast.h"
#include "runtime/program/forecast/measured_seconds.h"
#include "runtime/program/forecast/operator_replay.h"
#include "runtime/program/forecast/search.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain {
namespace {

/// Measures an operator. One that takes no made numbers, or finds no memory, on any rank has the rate of others. Every
/// rank must call it.
void measure_operator(const Group& world, const OperatorSignature& signature, const OperatorCall& call,
                      Machine& machine, std::vector<double>* spreads = nullptr) {
  std::optional<Replay> replay;
  try {
    replay = make_replay(signature, call);
    for (int i = 0; i < replay->num_sets; ++i) replay->run();
  } catch (const std::exception&) {
    replay.reset();
  }
  if (largest_of(world, replay ? 0 : 1) > 0) return;
  machine.operators.push_back({signature.text, seconds_of(world, replay->run, 1, spreads)});
}

/// The operators and collectives that are measured: those of steps on all meshes.
struct Questions {
  std::map<std::string, OperatorSignature> operators;
  std::map<std::string, OperatorCall> calls;  // of each operator
  using Group = std::tuple<Collective::Kind, int, Placement>;
  std::map<Group, std::set<double>> collectives;  // bytes
};

Questions questions_of(const Recipe& recipe, int64_t ranks, const ForecastHosts& hosts) {
  Questions questions;
  std::string refusal;
  for (const MeshLayout& layout : layouts_of(recipe, ranks)) {
    std::vector<Timeline> found;
    try {
      found = timelines(resolve(recipe, layout), hosts);
    } catch (const InputError& error) {
      refusal = error.what();
      continue;
    }
    for (const Timeline& timeline : found) {
      for (const OperatorSignature& each : timeline.signatures) questions.operators.emplace(each.text, each);
      for (const Timeline::Event& event : timeline.events) {
        if (const auto* const call = std::get_if<OperatorCall>(&event)) {
          questions.calls.emplace(timeline.signatures[static_cast<size_t>(call->signature)].text, *call);
        } else if (const auto* const collective = std::get_if<CollectiveCall>(&event)) {
          questions.collectives[{collective->kind, collective->size, collective->memory}].insert(
              collective->buffer_bytes);
        }
      }
    }
  }
  if (questions.operators.empty()) {
    throw InputError("no mesh of " + counted(ranks, "rank") + " is possible: " + refusal);
  }
  return questions;
}

/// Returns at most a few of `bytes`, the least and the largest among them.
std::vector<double> a_few(const std::set<double>& bytes) {
  constexpr size_t kFew = 8;
  const std::vector<double> all(bytes.begin(), bytes.end());
  if (all.size() <= kFew) return all;
  std::vector<double> few;
  for (size_t i = 0; i < kFew; ++i) few.push_back(all[i * (all.size() - 1) / (kFew - 1)]);
  return few;
}

/// Returns a call of a collective of `bytes` on `group`, whose ranks all call it.
std::function<void()> make_collective(Collective::Kind kind, const Group& group, Placement memory, double bytes) {
  const int64_t size = group.size();
  const int64_t part = std::max<int64_t>(static_cast<int64_t>(bytes) / 4 / size, 1);
  const int previous = (group.rank() + group.size() - 1) % group.size(), next = (group.rank() + 1) % group.size();
  const at::TensorOptions options(at::kFloat);
  const at::Tensor full = group.allocate(part * size, options, memory).tensor;
  at::Tensor own = full.narrow(0, group.rank() * part, part);
  switch (kind) {
    case Collective::Kind::AllReduce:
      return [=, tensor = full]() mutable { group.all_reduce(tensor).wait(); };
    case Collective::Kind::AllGather:
      return [=, tensor = full]() mutable { group.all_gather(tensor, own).wait(); };
    case Collective::Kind::ReduceScatter:
      return [=]() mutable { group.reduce_scatter(own, full).wait(); };
    case Collective::Kind::AllToAll:
      return [=, output = at::zeros_like(full)]() mutable { group.all_to_all(output, full).wait(); };
    case Collective::Kind::Exchange:
      return [=, output = at::zeros({part * size}, options)]() mutable {
        group.exchange(output, previous, full, next).wait();
      };
    case Collective::Kind::Broadcast:
      return [=, tensor = full]() mutable { group.broadcast(tensor, 0).wait(); };
    case Collective::Kind::Message:
      return [=, tensor = full]() mutable { group.message(tensor, 0, 1).wait(); };
    case Collective::Kind::Barrier:
      return [=] { group.barrier(); };
  }
  return {};
}

/// Returns what all ranks at once send over the network, from sums over all of them.
Network measure_network(const Group& world) {
  at::Tensor one = at::zeros({1}), many = at::zeros({int64_t{1} << 21});
  const double latency = seconds_of(world, [&] { world.all_reduce(one).wait(); });
  const double seconds = seconds_of(world, [&] { world.all_reduce(many).wait(); });
  const double sent = 2.0 * static_cast<double>(many.nbytes()) * (world.size() - 1) / world.size();
  return {sent / std::max(seconds - latency, 1e-6), latency / (2 * world.size())};
}

/// Returns the group of `size` ranks next to each other that this rank belongs to.
Group neighbours(const Group& world, int size) {
  std::vector<int> members;
  for (int i = 0; i < size; ++i) members.push_back(world.rank() / size * size + i);
  return world.split(members, "neighbours");
}

/// Returns the share of a collective's time during which a rank computes on undisturbed.
double measure_overlap(const Group& world) {
  const at::Tensor a = at::full({512, 512}, 1.0 / 64), b = at::full({512, 512}, 1.0 / 64);
  at::Tensor sums = at::zeros({int64_t{1} << 20});
  const auto compute = [&] { at::mm(a, b); };
  const auto communicate = [&] { world.all_reduce(sums).wait(); };
  const double computing = seconds_of(world, compute);
  const double communicating = seconds_of(world, communicate);
  const int count = std::max(1, static_cast<int>(std::lround(communicating / computing)));
  const double both = seconds_of(world, [&] {
    const Work work = world.all_reduce(sums);
    for (int i = 0; i < count; ++i) compute();
    work.wait();
  });
  return std::clamp((count * computing + communicating - both) / communicating, 0.0, 1.0);
}

/// Returns the seconds from the end of an awaited collective to the rank's next operator, with computing before the
/// collective: where ranks outnumber cores, those that wait have to get a core back.
double measure_wait(const Group& world) {
  const at::Tensor a = at::full({192, 192}, 1.0 / 64), b = at::full({192, 192}, 1.0 / 64);
  at::Tensor sum = at::zeros({16});
  const double computing = seconds_of(world, [&] { at::mm(a, b); });
  const double communicating = seconds_of(world, [&] { world.all_reduce(sum).wait(); });
  const double both = seconds_of(world, [&] {
    at::mm(a, b);
    world.all_reduce(sum).wait();
  });
  return std::max(both - computing - communicating, 0.0);
}

/// Returns the decisions for a model so small that a step of it is little but the calls of its operators.
Decisions smallest_decisions() {
  ModelShape shape;
  shape.hidden_size = 32;
  shape.intermediate_size = 64;
  shape.num_hidden_layers = 4;
  shape.num_attention_heads = 4;
  shape.num_key_value_heads = 2;
  shape.head_dim = 8;
  shape.vocab_size = 64;
  return {{{.shape = shape, .batch = {.sequence_length = 16, .global_batch = 1}}, {}},
          MeshLayout({{kDataAxis, 1}, {kContextAxis, 1}, {kTensorAxis, 1}}),
          {}};
}

/// Returns the seconds that a step takes for each call of an operator besides the operator's own: autograd's records,
/// the trainer's and the layers' code.
double measure_call(const Group& world) {
  const Decisions decisions = smallest_decisions();
  const DeviceMesh alone(decisions.layout, Group());
  const Timeline timeline = simulate(decisions, {}, 0, {1}, Recording::Signatures).front().timeline;
  Machine machine;
  {
    const at::NoGradGuard no_grad;
    for (const OperatorSignature& each : timeline.signatures) {
      measure_operator(world, each, OperatorCall{.kind = OperatorCall::Kind::Product}, machine);
    }
  }
  machine.index_operators();
  double own = 0;
  for (const Timeline::Event& event : timeline.events) {
    const auto* const call = std::get_if<OperatorCall>(&event);
    if (call != nullptr && machine.has_measured(*call, timeline)) own += machine.seconds(*call, timeline);
  }
  TransformerTrainer trainer(decisions, alone, at::kCPU);
  const StepBatch batch = made_step(decisions, trainer.layout(), 1, at::kCPU);
  const double step = seconds_of(
      world, [&] { trainer.step(batch, batch.num_counted, {.learning_rate = 1e-3}); }, 3);
  return std::max(step - own, 0.0) / static_cast<double>(timeline.events.size());
}

/// Sets the rates of operators that were not measured: those of the largest that were.
void set_rates(const Questions& questions, Machine& machine) {
  double most_flops = 0, most_bytes = 0;
  for (const MeasuredOperator& each : machine.operators) {
    const OperatorCall& call = questions.calls.at(each.signature);
    if (each.seconds <= 0) continue;
    if (call.kind == OperatorCall::Kind::Product && call.flops > most_flops) {
      most_flops = call.flops;
      const double rate = call.flops / each.seconds;
      machine.peak_flops = {0, rate, rate, rate, rate};
    }
    if (call.kind == OperatorCall::Kind::Elementwise && call.bytes > most_bytes) {
      most_bytes = call.bytes;
      machine.memory_bandwidth = call.bytes / each.seconds;
    }
  }
  machine.product_share = 1;
  machine.attention_share = machine.attention_backward_share = 0.5;
}

/// Throws InputError, on all ranks, unless all of them have the same questions: processors that LibTorch computes on in
/// different ways call different operators.
void check_same(const Questions& questions, const Group& world) {
  std::string own;
  for (const auto& [text, signature] : questions.operators) own += text + "\n";
  const std::string first = broadcast_text(world, own);
  agree(world, [&] {
    if (own != first) {
      throw InputError(
          "the ranks have different processors: measure on hosts of one kind, and give the file with --machine");
    }
  });
}

}  // namespace

std::string scatter_warning(std::vector<double> spreads) {
  constexpr double kMost = 0.25;
  if (spreads.empty()) return "";
  std::ranges::sort(spreads);
  const double usual = spreads[spreads.size() / 2];
  if (usual <= kMost) return "";
  return "measurements are noisy: in the median of all " + std::to_string(spreads.size()) + ", repetitions differ by " +
         std::to_string(std::lround(100 * usual)) +
         " %: something else uses this machine; measure again when it is idle";
}

Machine calibrate(const Recipe& recipe, const Group& world, const std::function<void(const Notice&)>& say) {
  const HostMap hosts = HostMap::of(world);
  const int64_t ranks_per_host = world.size() / hosts.num_hosts();
  const Questions questions = questions_of(recipe, world.size(), {ranks_per_host, false});
  check_same(questions, world);
  const double call_seconds = measure_call(world);
  const at::NoGradGuard no_grad;
  Machine machine;
  machine.call_seconds = call_seconds;
  machine.name = "measured";
  machine.device = "cpu";
  machine.ranks_per_host = ranks_per_host;
  machine.memory = static_cast<int64_t>(least_of(world, static_cast<double>(available_host_memory()))) / ranks_per_host;
  machine.source = "meshtrain plan --calibrate, for " + recipe.name;
  say({"measures " + counted(questions.operators.size(), "operator") + " on " +
       (world.size() == 1 ? "one rank" : counted(world.size(), "rank") + " at once")});
  std::vector<double> spreads;
  {
    Progress progress("operators of the host", static_cast<int64_t>(questions.operators.size()), "operators");
    for (const auto& [text, signature] : questions.operators) {
      measure_operator(world, signature, questions.calls.at(text), machine, &spreads);
      progress.advance();
    }
  }
  set_rates(questions, machine);
  if (world.size() > 1) {
    machine.overlap = measure_overlap(world);
    machine.wait_seconds = measure_wait(world);
    std::map<int, Group> groups;
    Progress progress("collectives", static_cast<int64_t>(questions.collectives.size()), "kinds");
    for (const auto& [what, bytes] : questions.collectives) {
      const auto [kind, size, memory] = what;
      auto group = groups.find(size);
      if (group == groups.end()) group = groups.emplace(size, neighbours(world, size)).first;
      for (const double each : a_few(bytes)) {
        const double seconds = seconds_of(world, make_collective(kind, group->second, memory, each), 1, &spreads);
        machine.collectives.push_back({meshtrain::name(kind), size, name_of(memory), each, seconds});
      }
      progress.advance();
    }
  }
  // A copy through memory, for groups that were not measured.
  machine.on_host = {machine.memory_bandwidth / 4, 50e-6};
  machine.among_hosts = hosts.num_hosts() > 1 ? measure_network(world) : machine.on_host;
  machine.index_operators();
  if (const std::string warning = scatter_warning(spreads); !warning.empty()) say({warning, true});
  return machine;
}

}  // namespace meshtrain

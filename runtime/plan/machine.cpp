#include "runtime/plan/machine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "mesh/error.h"
#include "runtime/plan/machine_fields.h"
#include "runtime/yaml/key_lister.h"
#include "runtime/yaml/layers.h"
#include "runtime/yaml/reader.h"
#include "runtime/yaml/writer.h"

namespace meshtrain {
namespace {

/// Returns the share of a GPU's multiprocessors that a product keeps busy: its tiles are computed in waves of as many
/// as there are multiprocessors, and the last wave may have few.
double share_of_waves(const OperatorCall& call, int64_t processors) {
  constexpr double kTileRows = 128, kTileColumns = 256;
  if (processors == 0) return 1;
  const auto [batch, rows, columns, summed] = call.product;
  const double tiles = static_cast<double>(batch) * std::ceil(static_cast<double>(rows) / kTileRows) *
                       std::ceil(static_cast<double>(columns) / kTileColumns);
  const auto whole = static_cast<double>(processors);
  return tiles / (std::ceil(tiles / whole) * whole);
}

/// Returns the number of messages that a rank of `size` sends one after the other.
double messages_of(Collective::Kind kind, int size) {
  const double others = size - 1, doublings = std::ceil(std::log2(std::max(size, 2)));
  switch (kind) {
    case Collective::Kind::AllReduce: return std::min(2 * others, 2 * doublings);
    case Collective::Kind::AllGather:
    case Collective::Kind::ReduceScatter: return others;
    case Collective::Kind::AllToAll:
    case Collective::Kind::Exchange: return 1;
    case Collective::Kind::Broadcast: return doublings;
    case Collective::Kind::Barrier: return 2 * doublings;
  }
  return 1;
}

/// Returns the seconds of `bytes` between two measurements, or along the line through the nearest two.
double interpolated(const std::vector<std::pair<double, double>>& seconds_of_bytes, double bytes) {
  if (seconds_of_bytes.size() == 1) return seconds_of_bytes.front().second;
  auto above = std::ranges::lower_bound(seconds_of_bytes, bytes, {}, &std::pair<double, double>::first);
  above = std::clamp(above, seconds_of_bytes.begin() + 1, seconds_of_bytes.end() - 1);
  const auto [low, low_seconds] = *(above - 1);
  const auto [high, high_seconds] = *above;
  const double seconds = low_seconds + (high_seconds - low_seconds) * (bytes - low) / (high - low);
  return std::max(seconds, std::min(low_seconds, high_seconds));
}

}  // namespace

double ProductFlops::of(c10::ScalarType dtype) const {
  double flops = 0;
  switch (dtype) {
    case c10::ScalarType::BFloat16: flops = bf16 > 0 ? bf16 : fp16; break;
    case c10::ScalarType::Half: flops = fp16 > 0 ? fp16 : bf16; break;
    case c10::ScalarType::Double: flops = fp64 > 0 ? fp64 : fp32 / 2; break;
    default: break;
  }
  return flops > 0 ? flops : fp32;
}

double Machine::seconds(const OperatorCall& call, const Timeline& timeline) const {
  if (call.signature >= 0) {
    const auto found = measured_.find(timeline.signatures[static_cast<size_t>(call.signature)].text);
    if (found != measured_.end()) return found->second;
  }
  const double peak = peak_flops.of(call.dtype);
  double computing = 0;
  if (call.kind == OperatorCall::Kind::Product) {
    computing = call.flops / (peak * product_share * share_of_waves(call, processors));
  } else if (call.kind == OperatorCall::Kind::Attention) {
    computing = call.flops / (peak * (call.is_backward ? attention_backward_share : attention_share));
  }
  return std::max(computing, call.bytes / memory_bandwidth) + operator_seconds;
}

double Machine::seconds(const CollectiveCall& call) const {
  std::vector<std::pair<double, double>> measured;
  for (const MeasuredCollective& each : collectives) {
    if (each.kind == meshtrain::name(call.kind) && each.ranks == call.size &&
        each.memory == name_of(call.memory)) {
      measured.emplace_back(each.bytes, each.seconds);
    }
  }
  if (!measured.empty()) {
    std::ranges::sort(measured);
    return std::max(interpolated(measured, call.buffer_bytes), 0.0);
  }
  const double messages = messages_of(call.kind, call.size);
  if (call.num_hosts == 1) return messages * on_host.latency + call.sent_bytes / on_host.bandwidth;
  // Rings of all ranks: each host's ranks share the way out, one ring through each.
  const bool pairwise = call.kind == Collective::Kind::AllToAll || call.kind == Collective::Kind::Exchange;
  const double ways = pairwise ? 1 : static_cast<double>(call.size) / call.num_hosts;
  const double bandwidth = std::min(on_host.bandwidth, ways * among_hosts.bandwidth);
  return messages * among_hosts.latency + call.sent_bytes / bandwidth;
}

void Machine::index_operators() {
  measured_.clear();
  for (const MeasuredOperator& each : operators) measured_.emplace(each.signature, each.seconds);
}

std::string name_of(Placement placement) {
  switch (placement) {
    case Placement::Private: return "private";
    case Placement::Own: return "own";
    case Placement::Common: return "common";
  }
  return "private";
}

Machine load_machine(const std::string& name) {
  if (std::optional<Machine> preset = machine_preset(name)) return *preset;
  if (!std::filesystem::exists(name)) {
    std::string known;
    for (const std::string& each : machine_presets()) known += (known.empty() ? "" : ", ") + each;
    throw InputError("--machine " + name + ": no such file, and no preset: " + known);
  }
  static const KnownKeys keys = [] {
    KeyLister lister;
    Machine machine;
    fields(lister, machine);
    return KnownKeys(lister.take());
  }();
  const YamlValue root = read_layers(name);
  Machine machine;
  machine.name = std::filesystem::path(name).stem().string();
  Reader reader(root, keys, Reader::Files::LeaveAlone);
  fields(reader, machine);
  machine.index_operators();
  return machine;
}

std::string to_yaml(const Machine& machine) {
  Machine copy = machine;
  Writer writer;
  fields(writer, copy);
  return writer.text();
}

}  // namespace meshtrain

#include "runtime/program/forecast/machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "mesh/base/error.h"
#include "runtime/program/forecast/machine_fields.h"
#include "runtime/program/yaml/key_lister.h"
#include "runtime/program/yaml/layers.h"
#include "runtime/program/yaml/reader.h"
#include "runtime/program/yaml/suggest.h"
#include "runtime/program/yaml/writer.h"

namespace meshtrain {
namespace {

/// A tile of a product's result, which one multiprocessor computes, and the share of the product rate that it reaches:
/// small tiles read more for each operation.
struct Tile {
  double rows, columns, share;
};

constexpr std::array kTiles = {Tile{128, 256, 1}, Tile{128, 128, 0.92}, Tile{64, 128, 0.75}};

/// Returns the share of a GPU's product rate that a product of these sizes reaches with the best tiles: they are
/// computed in waves of as many as there are multiprocessors, the last wave may have few, and tiles may hang over. Each
/// tile begins and ends at the cost of some summed elements.
double share_of_product(const OperatorCall& call, int64_t processors) {
  constexpr double kBeginning = 96;
  if (processors == 0) return 1;
  const auto [batch, rows, columns, summed] = call.product;
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tiles = static_cast<double>(batch) * std::ceil(static_cast<double>(rows) / tile.rows) *
                         std::ceil(static_cast<double>(columns) / tile.columns);
    const double waves = std::ceil(tiles / static_cast<double>(processors));
    const double computed = waves * static_cast<double>(processors) * tile.rows * tile.columns;
    const double needed = static_cast<double>(batch) * static_cast<double>(rows) * static_cast<double>(columns);
    best = std::max(best, tile.share * needed / computed);
  }
  return best * static_cast<double>(summed) / (static_cast<double>(summed) + kBeginning);
}

/// Returns the share of a GPU's attention rate that attention of these sizes reaches. Blocks of 128 queries of a head
/// take as long as they have keys, under a causal mask up to twice the average: the last ones leave multiprocessors
/// idle for about a block's time. A block begins and ends at the cost of `half_keys` keys. Each score takes an
/// exponential, whatever the head dim, which is as much time as 50 features.
double share_of_attention(const OperatorCall& call, int64_t processors, double half_keys) {
  constexpr double kQueries = 128, kUsualHead = 128, kExponential = 50;
  if (processors == 0) return 1;
  const auto [heads, queries, keys, head_dim] = call.product;
  const double blocks = static_cast<double>(heads) * std::ceil(static_cast<double>(queries) / kQueries);
  const double waves = blocks / static_cast<double>(processors), length = static_cast<double>(keys);
  const auto dim = static_cast<double>(head_dim);
  const double of_head = dim / (dim + kExponential) * (kUsualHead + kExponential) / kUsualHead;
  return waves / (waves + 1) * length / (length + half_keys) * std::min(of_head, 1.0);
}

/// Returns the number of messages that a rank of `size` sends one after the other.
double messages_of(Collective::Kind kind, int size) {
  const double others = size - 1, doublings = std::ceil(std::log2(std::max(size, 2)));
  switch (kind) {
    case Collective::Kind::AllReduce:
      return std::min(2 * others, 2 * doublings);
    case Collective::Kind::AllGather:
    case Collective::Kind::ReduceScatter:
      return others;
    case Collective::Kind::AllToAll:
    case Collective::Kind::Exchange:
    case Collective::Kind::Message:
      return 1;
    case Collective::Kind::Broadcast:
      return doublings;
    case Collective::Kind::Barrier:
      return 2 * doublings;
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
  if (high == low) return high_seconds;
  const double seconds = low_seconds + (high_seconds - low_seconds) * (bytes - low) / (high - low);
  return std::max(seconds, std::min(low_seconds, high_seconds));
}

}  // namespace

double ProductFlops::of(c10::ScalarType dtype) const {
  double flops = 0;
  switch (dtype) {
    case c10::ScalarType::BFloat16:
      flops = bf16 > 0 ? bf16 : fp16;
      break;
    case c10::ScalarType::Half:
      flops = fp16 > 0 ? fp16 : bf16;
      break;
    case c10::ScalarType::Float8_e4m3fn:
      flops = fp8 > 0 ? fp8 : of(c10::ScalarType::BFloat16);
      break;
    case c10::ScalarType::Float:
      flops = fp32;
      break;
    case c10::ScalarType::Double:
      flops = fp64 > 0 ? fp64 : fp32 / 2;
      break;
    default:
      break;
  }
  return flops > 0 ? flops : std::max({fp32, fp64, bf16, fp16, fp8});
}

/// The share of fp8's peak that products reach, over that of bf16: gradients are summed in fp32 outside of the tensor
/// cores, and power limits both (DeepSeek-V3, 2412.19437, 3.3.2; cuBLAS on H100 about 1,250 of 1,979 TFLOP/s).
constexpr double kFp8Share = 0.85;

double Machine::seconds(const OperatorCall& call, const Timeline& timeline) const {
  if (call.part == TimelinePart::HostUpdate) {
    double rate = host.update;
    if (host.update_all > 0) rate = std::min(rate, host.update_all / static_cast<double>(timeline.host_ranks));
    return rate > 0 ? call.bytes / rate : 0;
  }
  if (call.signature >= 0) {
    const auto found = measured_.find(timeline.signatures[static_cast<size_t>(call.signature)].text);
    if (found != measured_.end()) return found->second;
  }
  const double peak = peak_flops.of(call.dtype);
  double computing = 0;
  if (call.flops == 0) {
    // It has no elements, or no products: only its bytes take time.
  } else if (call.kind == OperatorCall::Kind::Product) {
    const bool is_fp8 = call.dtype == c10::ScalarType::Float8_e4m3fn;
    computing = call.flops / (peak * product_share * share_of_product(call, processors) * (is_fp8 ? kFp8Share : 1));
  } else if (call.kind == OperatorCall::Kind::Attention) {
    const double share = call.is_backward ? attention_backward_share : attention_share;
    computing = call.flops / (peak * share * share_of_attention(call, processors, attention_half_keys));
  }
  return std::max(computing, call.bytes / memory_bandwidth) + operator_seconds;
}

double Machine::seconds(const CollectiveCall& call) const {
  std::vector<std::pair<double, double>> measured;
  // A group of as many ranks that lie on other numbers of hosts was not measured.
  const int64_t hosts = ranks_per_host > 0 ? (call.size + ranks_per_host - 1) / ranks_per_host : call.num_hosts;
  for (const MeasuredCollective& each : collectives) {
    if (each.kind == meshtrain::name(call.kind) && each.ranks == call.size && each.memory == name_of(call.memory) &&
        hosts == call.num_hosts) {
      measured.emplace_back(each.bytes, each.seconds);
    }
  }
  if (!measured.empty()) {
    std::ranges::sort(measured);
    return std::max(interpolated(measured, call.buffer_bytes), 0.0);
  }
  const double messages = messages_of(call.kind, call.size);
  const double sent = call.kind == Collective::Kind::Message ? call.buffer_bytes : call.sent_bytes;  // on both ends
  if (call.num_hosts == 1) {
    return collective_seconds + messages * on_host.latency + sent / on_host.bandwidth;
  }
  // Rings of all ranks: each host's ranks share the way out, one ring through each.
  const bool pairwise = call.kind == Collective::Kind::AllToAll || call.kind == Collective::Kind::Exchange ||
                        call.kind == Collective::Kind::Message;
  const double ways = pairwise ? 1 : static_cast<double>(call.size) / call.num_hosts;
  const double bandwidth = std::min(on_host.bandwidth, ways * among_hosts.bandwidth);
  return collective_seconds + messages * among_hosts.latency + sent / bandwidth;
}

double Machine::seconds(const CopyCall& call) const {
  double rate = call.direction == CopyDirection::ToDevice ? host.to_gpu : host.to_host;
  if (call.disk && host.disk > 0) rate = rate > 0 ? std::min(rate, host.disk) : host.disk;
  return rate > 0 ? call.bytes / rate : 0;
}

bool Machine::has_measured(const OperatorCall& call, const Timeline& timeline) const {
  return call.signature >= 0 && measured_.contains(timeline.signatures[static_cast<size_t>(call.signature)].text);
}

void Machine::index_operators() {
  measured_.clear();
  for (const MeasuredOperator& each : operators) measured_.emplace(each.signature, each.seconds);
}

std::string name_of(Placement placement) {
  switch (placement) {
    case Placement::Private:
      return "private";
    case Placement::Own:
      return "own";
    case Placement::Common:
      return "common";
  }
  return "private";
}

Machine load_machine(const std::string& name) {
  if (std::optional<Machine> preset = machine_preset(name)) return *preset;
  if (!std::filesystem::exists(name)) {
    const std::string meant = nearest(name, machine_presets());
    throw InputError("--machine " + name + ": neither a file nor a preset" +
                     (meant.empty() ? ": " : "; did you mean " + meant + "? Presets: ") + joined(machine_presets()));
  }
  static const KnownKeys keys = [] {
    KeyLister lister;
    Machine machine;
    fields(lister, machine);
    return KnownKeys(lister.take());
  }();
  auto source = std::make_shared<YamlSource>();
  source->name = name;
  const YamlValue root = parse_yaml(read_short_file(name, "--machine " + name + ": "), source);
  const std::string wanted =
      "; meshtrain plan RECIPE --calibrate --out FILE measures a machine, and presets are " + joined(machine_presets());
  if (root.kind == YamlValue::Kind::Null) throw InputError("--machine " + name + ": an empty file" + wanted);
  if (root.kind != YamlValue::Kind::Map) {
    throw InputError("--machine " + name + ": " + root.shown() + " is not a map of a machine's keys" + wanted);
  }
  if (root.find("train") != nullptr || root.find("model") != nullptr) {
    throw InputError("--machine " + name + ": this is a recipe, not a machine file" + wanted);
  }
  Machine machine;
  machine.name = std::filesystem::path(name).stem().string();
  Reader reader(root, keys, Reader::Files::LeaveAlone);
  fields(reader, machine);
  reader.refuse_missing();
  if (machine.peak_flops.of(c10::ScalarType::Float) <= 0) {
    throw InputError(name + ": product_flops: at least one rate must be above 0");
  }
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

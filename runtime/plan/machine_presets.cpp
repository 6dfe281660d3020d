#include <array>

#include "runtime/plan/machine.h"

namespace meshtrain {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// What data sheets say of a GPU and of the hosts and networks it is sold in.
struct Sheet {
  const char* name;
  const char* source;
  ProductFlops flops;      // dense
  int64_t processors;      // multiprocessors
  double memory_bandwidth;
  int64_t memory;
  double product_share, attention_share, attention_backward_share, attention_half_keys;  // measured: see below
  double on_host, among_hosts;  // bytes a second that each GPU sends
};

constexpr std::array kSheets = {
    Sheet{"a100", "NVIDIA A100 80GB SXM data sheet; HDR InfiniBand, 200 Gb/s a GPU",
          {0, 312e12, 312e12, 19.5e12, 9.7e12}, 108, 2.04e12, 80 * kGiB,
          0.77, 0.66, 0.56, 300, 300e9, 25e9},
    Sheet{"h100", "NVIDIA H100 SXM data sheet; NDR InfiniBand, 400 Gb/s a GPU",
          {1979e12, 989e12, 989e12, 67e12, 67e12}, 132, 3.35e12, 80 * kGiB,
          0.64, 0.70, 0.58, 700, 450e9, 50e9},
    Sheet{"h100-500w", "torchtitan's H100 benchmarks: HBM2e, limited to 500 W; 400 Gb/s a GPU",
          {1979e12, 989e12, 989e12, 67e12, 67e12}, 132, 2.4e12, 96 * kGiB,
          0.52, 0.70, 0.58, 700, 450e9, 50e9},
    Sheet{"h200", "NVIDIA H200 SXM data sheet; NDR InfiniBand, 400 Gb/s a GPU",
          {1979e12, 989e12, 989e12, 67e12, 67e12}, 132, 4.8e12, 141 * kGiB,
          0.64, 0.70, 0.58, 700, 450e9, 50e9},
    Sheet{"b200", "NVIDIA HGX B200 data sheet; NDR InfiniBand, 400 Gb/s a GPU",
          {4500e12, 2250e12, 2250e12, 75e12, 37e12}, 148, 8e12, 180 * kGiB,
          0.52, 0.60, 0.52, 700, 900e9, 50e9},
};

}  // namespace

std::optional<Machine> machine_preset(const std::string& name) {
  for (const Sheet& sheet : kSheets) {
    if (name != sheet.name) continue;
    Machine machine;
    machine.name = sheet.name;
    machine.source = sheet.source;
    machine.peak_flops = sheet.flops;
    machine.processors = sheet.processors;
    machine.product_share = sheet.product_share;
    machine.attention_share = sheet.attention_share;
    machine.attention_backward_share = sheet.attention_backward_share;
    machine.attention_half_keys = sheet.attention_half_keys;
    machine.memory_bandwidth = 0.85 * sheet.memory_bandwidth;
    machine.operator_seconds = 4e-6;
    machine.memory = sheet.memory;
    machine.on_host = {0.67 * sheet.on_host, 2e-6};
    machine.among_hosts = {0.75 * sheet.among_hosts, 6e-6};
    machine.collective_seconds = 20e-6;
    machine.overlap = 0.85;
    return machine;
  }
  return std::nullopt;
}

std::vector<std::string> machine_presets() {
  std::vector<std::string> names;
  for (const Sheet& sheet : kSheets) names.emplace_back(sheet.name);
  return names;
}

}  // namespace meshtrain

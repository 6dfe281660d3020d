#include <array>

#include "runtime/program/forecast/machine.h"

namespace meshtrain {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// The shares of the peak that kernels reach, and the keys with which attention reaches half of its share.
struct Shares {
  double product, attention, attention_backward, half_keys;
};

// The middle of each range that a source gives.
// A100: products of SimuMax's configs/system/a100_pcie.json, 0.70 to 0.80; attention: FlashAttention-2 (Dao,
// 2307.08691, figures 5 and 6: 200 and 170 TFLOP/s of long sequences).
constexpr Shares kAmpere = {0.75, 0.66, 0.56, 300};
// H100 at 700 W: products of random numbers at sizes of layers reach 620 to 680 TFLOP/s before power limits the clock;
// attention: FlashAttention-3 (Shah et al., 2407.08608, figures 5 and 6, causal, head dim 128: 379, 477, 559, 610 and
// 641 TFLOP/s of 1k to 16k keys).
constexpr Shares kHopper = {0.66, 0.70, 0.58, 700};
// At 500 W of 700 the clock under products falls to about 0.8.
constexpr Shares kHopper500W = {0.53, 0.70, 0.58, 700};
// B200: what SimuMax measured of it, configs/system/b200_bf16_ceperm.json: large products 0.45 to 0.52; attention of
// 4,096 keys by heads, 0.16 to 0.47 forward, and 0.34 to 0.41 backward. The best of them, of keys without end.
constexpr Shares kBlackwell = {0.485, 0.55, 0.48, 700};

/// The numbers that data sheets give for a GPU and for the hosts and networks it is sold in.
struct Sheet {
  const char* name;
  const char* source;
  ProductFlops flops;  // dense
  Shares shares;
  int64_t processors;  // multiprocessors
  double memory_bandwidth;
  int64_t memory;
  double on_host, among_hosts;  // bytes a second that each GPU sends
  double pcie;                  // bytes a second in one direction between a GPU and its host
  double host_memory;           // bytes a second of the host's memory
};

/// The rest of every preset's source.
constexpr const char* kShares =
    "; scaled to the shares of these rates that measured kernels reach, corrected by this program's steps on one H200 "
    "and, for collectives, by published runs of other programs. This program has not run on several GPUs";

constexpr ProductFlops kHopperFlops = {1979e12, 989e12, 989e12, 67e12, 67e12};
// The GPUs' data sheets: 64 and 128 GB/s of PCIe x16 in both directions together.
constexpr double kPcie4 = 32e9, kPcie5 = 64e9;
// Two sockets of 8 channels: the EPYC 7742 of DGX A100 with DDR4-3200, the Xeon 8480C of DGX H100 with
// DDR5-4800, which stands for the hosts of the other GPUs with PCIe 5 too.
constexpr double kEpycDdr4 = 2 * 204.8e9, kXeonDdr5 = 2 * 307.2e9;
constexpr std::array kSheets = {
    Sheet{"a100", "NVIDIA A100 80GB SXM data sheet; HDR InfiniBand, 200 Gb/s a GPU",
          ProductFlops{0, 312e12, 312e12, 19.5e12, 9.7e12}, kAmpere, 108, 2.04e12, 80 * kGiB, 300e9, 25e9, kPcie4,
          kEpycDdr4},
    Sheet{"h100", "NVIDIA H100 SXM data sheet; NDR InfiniBand, 400 Gb/s a GPU", kHopperFlops, kHopper, 132, 3.35e12,
          80 * kGiB, 450e9, 50e9, kPcie5, kXeonDdr5},
    Sheet{"h100-500w", "torchtitan's H100 benchmarks: HBM2e, limited to 500 W; 400 Gb/s a GPU", kHopperFlops,
          kHopper500W, 132, 2.4e12, 96 * kGiB, 450e9, 50e9, kPcie5, kXeonDdr5},
    Sheet{"h200", "NVIDIA H200 SXM data sheet; NDR InfiniBand, 400 Gb/s a GPU", kHopperFlops, kHopper, 132, 4.8e12,
          141 * kGiB, 450e9, 50e9, kPcie5, kXeonDdr5},
    Sheet{"b200", "NVIDIA HGX B200 data sheet; NDR InfiniBand, 400 Gb/s a GPU",
          ProductFlops{4500e12, 2250e12, 2250e12, 75e12, 37e12}, kBlackwell, 148, 8e12, 180 * kGiB, 900e9, 50e9, kPcie5,
          kXeonDdr5},
};

/// The rates that benchmarks/published fits: those of kernels on own_runs.csv, because other programs have other
/// kernels; those of collectives and fp8 on published_runs.csv.
constexpr Rates kFitted = {
    .products = 1.05, .attention = 1.04, .fp8_products = 0.92, .memory = 1.02, .on_host = 0.97, .among_hosts = 0.94};

}  // namespace

std::optional<Machine> sourced_machine(const std::string& name) {
  for (const Sheet& sheet : kSheets) {
    if (name != sheet.name) continue;
    Machine machine;
    machine.name = sheet.name;
    machine.source = std::string(sheet.source) + kShares;
    machine.peak_flops = sheet.flops;
    machine.processors = sheet.processors;
    machine.product_share = sheet.shares.product;
    machine.attention_share = sheet.shares.attention;
    machine.attention_backward_share = sheet.shares.attention_backward;
    machine.attention_half_keys = sheet.shares.half_keys;
    machine.memory_bandwidth = 0.85 * sheet.memory_bandwidth;
    machine.operator_seconds = 4e-6;
    machine.memory = sheet.memory;
    // NCCL's gathers and reduce-scatters reach 0.67 of NVLink, and a collective takes 23 microseconds at least, as
    // SimuMax measured; 0.75 of several hosts' InfiniBand. Meanwhile they take 16 to 24 multiprocessors from computing.
    machine.on_host = {0.67 * sheet.on_host, 2e-6};
    machine.among_hosts = {0.75 * sheet.among_hosts, 6e-6};
    machine.collective_seconds = 20e-6;
    machine.overlap = 0.85;
    // Measured beside one H200, on 16 cores of a Xeon: copies reach 0.87 of PCIe in one direction and 0.77 in both at
    // once, the update of one rank 0.23 of the memory's rate. That of 8 ranks at once is assumed.
    machine.host = {.to_gpu = 0.82 * sheet.pcie,
                    .to_host = 0.82 * sheet.pcie,
                    .update = 0.23 * sheet.host_memory,
                    .update_all = 0.7 * sheet.host_memory};
    return machine;
  }
  return std::nullopt;
}

Machine with_rates(Machine machine, const Rates& rates) {
  machine.product_share *= rates.products;
  machine.attention_share *= rates.attention;
  machine.attention_backward_share *= rates.attention;
  machine.peak_flops.fp8 *= rates.fp8_products;
  machine.memory_bandwidth *= rates.memory;
  machine.on_host.bandwidth *= rates.on_host;
  machine.among_hosts.bandwidth *= rates.among_hosts;
  return machine;
}

std::optional<Machine> machine_preset(const std::string& name) {
  const std::optional<Machine> machine = sourced_machine(name);
  return machine ? std::optional(with_rates(*machine, kFitted)) : std::nullopt;
}

Rates preset_rates() {
  return kFitted;
}

std::vector<std::string> machine_presets() {
  std::vector<std::string> names;
  for (const Sheet& sheet : kSheets) names.emplace_back(sheet.name);
  return names;
}

}  // namespace meshtrain

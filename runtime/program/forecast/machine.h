#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/forecast/timeline.h"

namespace meshtrain {

/// A way between ranks.
struct Network {
  double bandwidth = 0;  ///< bytes a second that a rank sends
  double latency = 0;    ///< seconds of a message
};

/// The rates of offloaded shards, in bytes a second of one rank; 0: not known.
struct HostRates {
  double to_gpu = 0, to_host = 0;  ///< of copies between a GPU and pinned memory of its host
  double update = 0;               ///< read and written by an optimizer's update on the host
  double update_all = 0;           ///< the most that the updates of all ranks of a host reach together; 0: no limit
  double disk = 0;                 ///< read from the disk, and written to it, when all ranks of a host do so
};

/// FLOP/s of products by dtype; 0: not known, and not used or that of another dtype.
struct ProductFlops {
  double fp8 = 0, bf16 = 0, fp16 = 0, fp32 = 0, fp64 = 0;

  /// Returns that of `dtype`; where it is not known, that of the next wider dtype that is.
  double of(c10::ScalarType dtype) const;
};

/// The measured seconds of a collective for one kind, size of group and number of bytes.
struct MeasuredCollective {
  std::string kind;                ///< name(Collective::Kind)
  int64_t ranks = 0;               ///< of the group
  std::string memory = "private";  ///< private own common: Placement
  double bytes = 0;                ///< Traffic::buffer_bytes
  double seconds = 0;
};

/// The measured seconds of an operator.
struct MeasuredOperator {
  std::string signature;  ///< as in Timeline::signatures
  double seconds = 0;
};

/// The speeds that a step's time depends on: a preset for a GPU with the network around it, or a file that `plan
/// --calibrate` has measured.
struct Machine {
  std::string name;
  std::string source;           ///< the source of its numbers
  std::string device = "cuda";  ///< cpu cuda
  ProductFlops peak_flops;
  double product_share = 0.75;   ///< of the peak that large products reach
  double attention_share = 0.5;  ///< of the peak that the forward of long causal attention reaches
  double attention_backward_share = 0.4;
  double attention_half_keys = 0;  ///< number of keys at which attention reaches half of its share
  int64_t processors = 0;          ///< multiprocessors that share the tiles of a product; 0: no tiles
  double memory_bandwidth = 0;     ///< bytes a second that elementwise operators read and write
  double operator_seconds = 0;     ///< least seconds of an operator
  double collective_seconds = 0;   ///< least seconds of a collective
  double overlap = 1;              ///< share of a collective's time during which the rank computes on undisturbed
  double call_seconds = 0;         ///< of the host around each operator, where it computes; a GPU's host runs ahead
  double wait_seconds = 0;         ///< from the end of an awaited collective to the rank's next operator
  int64_t memory = 0;              ///< bytes of a rank's device; 0: not known
  int64_t ranks_per_host = 0;      ///< of the measurements; 0: any
  HostRates host;
  Network on_host, among_hosts;  ///< among_hosts: of each rank, all ranks of a host at once
  std::vector<MeasuredOperator> operators;
  std::vector<MeasuredCollective> collectives;

  double seconds(const OperatorCall& call, const Timeline& timeline) const;
  double seconds(const CollectiveCall& call) const;
  double seconds(const CopyCall& call) const;
  /// Returns true when the rates of copies and of the host's updates are known.
  bool times_offload() const { return host.to_gpu > 0 && host.to_host > 0 && host.update > 0; }
  /// Returns true when `operators` has the call's signature.
  bool has_measured(const OperatorCall& call, const Timeline& timeline) const;
  /// Call after `operators` was changed.
  void index_operators();

 private:
  std::map<std::string, double, std::less<>> measured_;  // seconds by signature
};

/// Returns the word for a placement in a machine file: private, own, common.
std::string name_of(Placement placement);

/// The rates of GPUs and networks that data sheets and measured kernels leave open, as factors of a machine's.
struct Rates {
  double products = 1;
  double attention = 1;
  double fp8_products = 1;  ///< beyond `products`
  double memory = 1;        ///< of elementwise operators
  double on_host = 1;       ///< of collectives, by bandwidth
  double among_hosts = 1;
};

/// Returns `machine` with its rates times `rates`.
Machine with_rates(Machine machine, const Rates& rates);

/// Returns the preset `name` as data sheets and measured kernels have it, before it was fitted on runs; none for other
/// names.
std::optional<Machine> sourced_machine(const std::string& name);
/// Returns the rates of machine_preset(), times those of sourced_machine().
Rates preset_rates();
/// Returns the preset `name`: a100, h100, h100-500w, h200, b200; none for other names.
std::optional<Machine> machine_preset(const std::string& name);
/// Returns the names of all presets.
std::vector<std::string> machine_presets();

/// Returns the preset `name`, or else the machine of the YAML file of that name. Throws InputError with file, line,
/// column and key.
Machine load_machine(const std::string& name);
/// Returns the machine as YAML, which load_machine() reads.
std::string to_yaml(const Machine& machine);

}  // namespace meshtrain

#pragma once

#include "mesh/backend.h"
#include "runtime/program/forecast/machine.h"
#include "runtime/program/yaml/rule.h"

/// The keys of a machine file. `fields` is called with an archive; see runtime/program/yaml/rule.h.
namespace meshtrain {

template <class Archive>
void fields(Archive& archive, Network& network) {
  archive.field("bandwidth", network.bandwidth, {.required = true, .above = 0});
  archive.field("latency", network.latency, {.least = 0});
}

template <class Archive>
void fields(Archive& archive, MeasuredOperator& measured) {
  archive.field("signature", measured.signature, {.required = true});
  archive.field("seconds", measured.seconds, {.required = true, .least = 0});
}

template <class Archive>
void fields(Archive& archive, MeasuredCollective& measured) {
  using Kind = Collective::Kind;
  archive.field(
      "kind", measured.kind,
      {.required = true,
       .choices = {name(Kind::AllReduce), name(Kind::AllGather), name(Kind::ReduceScatter), name(Kind::AllToAll),
                   name(Kind::Exchange), name(Kind::Broadcast), name(Kind::Barrier), name(Kind::Message)}});
  archive.field("ranks", measured.ranks, {.required = true, .least = 1});
  archive.field("memory", measured.memory, {.choices = {"private", "own", "common"}});
  archive.field("bytes", measured.bytes, {.required = true, .least = 0});
  archive.field("seconds", measured.seconds, {.required = true, .least = 0});
}

template <class Archive>
void fields(Archive& archive, ProductFlops& flops) {
  archive.field("fp8", flops.fp8, {.least = 0});
  archive.field("bf16", flops.bf16, {.least = 0});
  archive.field("fp16", flops.fp16, {.least = 0});
  archive.field("fp32", flops.fp32, {.least = 0});
  archive.field("fp64", flops.fp64, {.least = 0});
}

template <class Archive>
void fields(Archive& archive, HostRates& host) {
  archive.field("to_gpu", host.to_gpu, {.least = 0});
  archive.field("to_host", host.to_host, {.least = 0});
  archive.field("update", host.update, {.least = 0});
  archive.field("update_all", host.update_all, {.least = 0});
  archive.field("disk", host.disk, {.least = 0});
}

template <class Archive>
void fields(Archive& archive, Machine& machine) {
  archive.field("name", machine.name);
  archive.field("source", machine.source);
  archive.field("device", machine.device, {.choices = {"cpu", "cuda"}});
  archive.section("product_flops", machine.peak_flops);
  archive.field("product_share", machine.product_share, {.above = 0, .most = 1});
  archive.field("attention_share", machine.attention_share, {.above = 0, .most = 1});
  archive.field("attention_backward_share", machine.attention_backward_share, {.above = 0, .most = 1});
  archive.field("attention_half_keys", machine.attention_half_keys, {.least = 0});
  archive.field("processors", machine.processors, {.least = 0});
  archive.field("memory_bandwidth", machine.memory_bandwidth, {.required = true, .above = 0});
  archive.field("operator_seconds", machine.operator_seconds, {.least = 0});
  archive.field("collective_seconds", machine.collective_seconds, {.least = 0});
  archive.field("overlap", machine.overlap, {.least = 0, .most = 1});
  archive.field("call_seconds", machine.call_seconds, {.least = 0});
  archive.field("wait_seconds", machine.wait_seconds, {.least = 0});
  archive.field("memory", machine.memory, {.least = 0});
  archive.field("ranks_per_host", machine.ranks_per_host, {.least = 0});
  archive.section("host", machine.host);
  archive.section("on_host", machine.on_host);
  archive.section("among_hosts", machine.among_hosts);
  archive.list("collectives", machine.collectives, MeasuredCollective());
  archive.list("operators", machine.operators, MeasuredOperator());
}

}  // namespace meshtrain

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/program/forecast/search.h"

namespace meshtrain {

/// Returns the search as a table of at most 100 columns: the first `top` meshes, and the reasons why others are
/// refused. Without times the first line says that the table ranks by traffic alone.
std::string to_text(const MeshSearch& search, const ForecastRequest& request, size_t top);

/// Returns which mesh to take and why, and why the next and the slowest take longer; empty without times.
std::string advice(const MeshSearch& search);

/// Returns a line about meshes that a search has only where asks_for_pipelines(); empty where it has them, or where
/// there are none.
std::string left_out(const Recipe& recipe, int64_t ranks);

/// Returns why no mesh of a search can be taken, and what to do, in one line.
std::string explain(const MeshSearch& search, const Recipe& recipe, const ForecastRequest& request);

/// Returns the assumptions of a forecast, to be appended to a line with its figures: "; 2 hosts of 8 ranks (assumed);
/// times: " and Machine::source.
std::string basis_text(const ForecastRequest& request);

/// Returns "1.24 s" or "35.2 ms".
std::string seconds_text(double seconds);

/// Returns "1f1b over 4 stages of 8 layers; the ranks along pp need 12.1 GiB, 11 GiB, 9.8 GiB and 10.2 GiB". `bytes`:
/// stage_memory().
std::string describe_stages(const PipelineChoice& pipeline, const std::vector<int64_t>& bytes);
/// Returns the same about a mesh, in lines of a plan.
std::string stages_text(const MeshForecast& mesh, const std::vector<int64_t>& bytes);

/// Returns forecast_worst_routing() in words; empty without it.
std::string describe_worst_routing(const Decisions& decisions, const ForecastHosts& hosts);

/// Returns a line of a plan about MeshForecast::worst_routing; empty without it.
std::string worst_routing_text(const MeshForecast& mesh);

/// Return the bytes of each part of a rank's memory, and the seconds of each part of its computing, by name.
std::map<std::string, int64_t> memory_parts(const StepMemory& memory);
std::map<std::string, double> time_parts(const TimeForecast& time);
std::map<std::string, int64_t> offload_parts(const OffloadForecast& offload);

/// Returns the search as a JSON object: {"ranks", "ranks_per_host", "assumes_hosts", "device", "times",
/// "runtime_bytes", "meshes": [{"mesh", "settings", "fits", "rank", "micro_batches", "memory_bytes": {PART: bytes},
/// "memory_bytes_total", "pipeline", "worst_routing": {"memory_bytes", "memory_bytes_total", "sent_bytes"},
/// "sent_bytes_on_host", "sent_bytes_among_hosts", "seconds", "tokens_per_second_per_rank", "seconds_by_part": {PART:
/// seconds}, "model_flops", "traffic": [{"group", "purpose", "collective", "calls", "sent_bytes", "hosts"}]}],
/// "refused": [{"key", "reason", "meshes"}]}.
std::string to_json(const MeshSearch& search, const ForecastRequest& request);

}  // namespace meshtrain

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshtrain {

class Conversion;

// The parts of convert_megatron(). The arguments of Megatron-LM are keys by their names: "--num-layers".
void take_megatron_model(Conversion& from);
void take_megatron_parallelism(Conversion& from);
/// Takes the optimizer and the schedule of a run of `steps` with `batch` samples each; none: not known.
void take_megatron_optimizer(Conversion& from, const std::optional<int64_t>& batch,
                             const std::optional<int64_t>& steps);
void take_megatron_training(Conversion& from);

/// Returns a number of steps that is given as --NAME-iters, or as --NAME-samples of `batch` samples a step.
std::optional<int64_t> megatron_steps(Conversion& from, const std::string& name, const std::optional<int64_t>& batch);

}  // namespace meshtrain

#include "runtime/training/optimizer/rules.h"

#include <algorithm>

#include "mesh/base/error.h"
#include "mesh/base/files/glob.h"

namespace meshtrain {

UpdateRule rule_of(const Parameter& parameter, const OptimizerOptions& options) {
  const bool is_matrix = parameter.global_shape.size() > 1 && parameter.num_matrices > 0;
  const bool muon = options.name == "muon";
  UpdateRule rule;
  const auto group = std::find_if(options.groups.begin(), options.groups.end(),
                                  [&](const GroupOptions& each) { return matches(each.pattern, parameter.name); });
  const bool by_element = parameter.of_tokens || (group != options.groups.end() && group->by_element);
  rule.full_matrix = muon && is_matrix && !by_element;
  rule.weight_decay = options.decay == DecayScope::All || is_matrix ? options.weight_decay : 0;
  if (muon && !rule.full_matrix && options.muon.adamw_learning_rate) {
    if (options.learning_rate == 0) {
      throw InputError(
          "muon.adamw_learning_rate needs optimizer.learning_rate above 0: set optimizer.learning_rate to its peak");
    }
    rule.rate = *options.muon.adamw_learning_rate / options.learning_rate;
  }
  if (group == options.groups.end()) return rule;
  rule.rate *= group->learning_rate_factor;
  rule.weight_decay = group->weight_decay.value_or(rule.weight_decay);
  return rule;
}

std::vector<UpdateRange> update_ranges(const FlatBuffer& buffer, const OptimizerOptions& options) {
  std::vector<UpdateRange> ranges;
  for (const Segment& segment : buffer.segments()) {
    const Range kept = buffer.in_shard({segment.offset, segment.numel});
    if (kept.numel == 0) continue;
    const UpdateRule rule = rule_of(*segment.parameter, options);
    if (ranges.empty() || ranges.back().rule != rule) ranges.push_back({{kept.offset, 0}, rule});
    Range& last = ranges.back().range;
    last.numel = kept.offset + kept.numel - last.offset;  // padding between is zero
  }
  return ranges;
}

}  // namespace meshtrain

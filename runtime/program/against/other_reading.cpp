#include "runtime/program/against/other_reading.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "mesh/device/aten.h"
#include "runtime/program/against/gradient_facts.h"
#include "runtime/training/model/ignored_label.h"

namespace meshtrain {
namespace {

struct Candidate {
  std::string text;
  StepReading reading;
};

at::Tensor shifted(const at::Tensor& labels) {
  at::Tensor result = at::full_like(labels, kIgnoredLabel);
  const int64_t length = labels.size(1);
  result.narrow(1, 0, length - 1).copy_(labels.narrow(1, 1, length - 1));
  return result;
}

/// Returns positions that begin at 0 on each of `ranks`: int64 [samples, S]. `zigzag`: each rank has two chunks of a
/// sequence, r and 2 ranks - 1 - r.
at::Tensor restarted(const at::Tensor& inputs, int64_t ranks, bool zigzag) {
  const at::Tensor all = at::arange(inputs.size(1));
  const int64_t chunk = inputs.size(1) / (zigzag ? 2 * ranks : ranks);
  const at::Tensor second = all.div(chunk * ranks, "floor");  // 1 in the second half, for zig-zag
  const at::Tensor positions = all.remainder(chunk) + (zigzag ? second * chunk : at::zeros_like(all));
  return positions.expand_as(inputs).contiguous();
}

std::vector<Candidate> candidates(const StepDump& dump) {
  std::vector<Candidate> result;
  const int64_t length = dump.inputs().size(1);
  const DocumentStarts& documents = dump.documents();
  if (length > 1) {
    result.push_back({"labels: shifted twice, so that each token predicts the one after the next",
                      {shifted(dump.labels()), documents}});
  }
  if (!documents.empty()) {
    result.push_back({"documents: ignored; attention crosses them, and positions continue", {dump.labels()}});
    result.push_back({"documents: attention crosses them, although positions restart in each",
                      {dump.labels(), {}, document_positions(documents, length)}});
  }
  const auto cp = dump.mesh().find("cp");
  if (cp == dump.mesh().end() || cp->second == 1) return result;
  for (const bool zigzag : {false, true}) {
    if (length % (zigzag ? 2 * cp->second : cp->second) != 0) continue;
    result.push_back({"positions: they begin at 0 on each of cp=" + std::to_string(cp->second) + " ranks, which have " +
                          (zigzag ? "two chunks of a sequence (zig-zag)" : "consecutive parts of a sequence"),
                      {dump.labels(), documents, restarted(dump.inputs(), cp->second, zigzag)}});
  }
  return result;
}

/// Returns true when every gradient of the program is the same multiple of that of `step`.
bool explains(const StepDump& dump, const OwnStep& step, const std::map<std::string, double>& rounding) {
  const std::vector<GradientFacts> facts = gradient_facts(dump, step, rounding);
  const auto [least, most] = std::ranges::minmax(facts, {}, &GradientFacts::factor);
  return std::ranges::all_of(facts, &GradientFacts::is_multiple) && most.factor - least.factor <= 0.05 * most.factor;
}

}  // namespace

std::optional<OtherReading> find_other_reading(const StepDump& dump, const OwnStep& own, const std::string& precision,
                                               const std::map<std::string, double>& rounding) {
  for (const Candidate& candidate : candidates(dump)) {
    if (candidate.reading.labels.max().item<int64_t>() < 0) continue;
    OwnStep step = compute_step(dump, candidate.reading, precision, /*apart=*/true);
    if (!explains(dump, step, rounding)) continue;
    const std::string evidence = "read in this way, every gradient equals that of one rank, and the loss is " +
                                 std::to_string(step.loss()) + " (as dumped " + std::to_string(own.loss()) + ")";
    return OtherReading{{candidate.text, evidence}, std::move(step)};
  }
  return {};
}

}  // namespace meshtrain

#include "runtime/program/verify/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "mesh/base/size_text.h"
#include "runtime/program/recipe/context.h"
#include "runtime/program/recipe/pipeline.h"
#include "runtime/program/recipe/sharding.h"

namespace meshtrain {
namespace {

using Kind = Comparison::Kind;

constexpr Kind kKinds[] = {Kind::Choices,      Kind::Loss,   Kind::GradientNorm, Kind::Gradient,
                           Kind::AllGradients, Kind::Weight, Kind::AllWeights};

std::string describe_model(const ModelShape& shape) {
  std::string inner = "feed-forward " + with_separators(shape.intermediate_size);
  if (const ExpertsShape& experts = shape.experts) {
    inner = (has_dense_layers(shape) ? inner + " or " : "") + fmt::format("{} of {} of {}", experts.num_experts_per_tok,
                                                                          counted(experts.num_experts, "expert"),
                                                                          with_separators(expert_features(shape)));
  }
  return fmt::format("{} of hidden size {}, {} of {} with {}, {}, vocabulary {}",
                     counted(shape.num_hidden_layers, "layer"), with_separators(shape.hidden_size),
                     counted(shape.num_attention_heads, "head"), shape.head_dim,
                     counted(shape.num_key_value_heads, "KV head"), inner, with_separators(shape.vocab_size));
}

/// Returns " (the recipe's: bf16)" when the recipe has another value.
template <class Value>
std::string instead_of(const Value& asked, const Value& used) {
  return asked == used ? "" : fmt::format(" (the recipe's: {})", asked);
}

std::string describe_optimizer(const Recipe& recipe, const Recipe& asked) {
  const OptimizerOptions& optimizer = recipe.optimizer;
  std::string text = fmt::format("{}, constant learning rate {}{}", optimizer.name, optimizer.learning_rate,
                                 instead_of(asked.optimizer.learning_rate, optimizer.learning_rate));
  if (optimizer.name == "adamw" && optimizer.eps != asked.optimizer.eps) {
    text += fmt::format(", eps {}{}", optimizer.eps, instead_of(asked.optimizer.eps, optimizer.eps));
  }
  return text + (recipe.train.clip_norm == 0 ? ", no clipping" : fmt::format(", clip {}", recipe.train.clip_norm));
}

std::string describe_documents(const SourceOptions& source) {
  if (!source.documents) return "";
  return fmt::format("; documents {}, labels across their ends {}",
                     *source.documents == kDocumentsOfIndex ? "are those of the index"
                                                            : fmt::format("end with token {}", *source.documents),
                     source.boundaries_count ? "count" : "do not count");
}

std::string describe_data(const DataOptions& recipe, const VerifyData& data) {
  std::vector<std::string> files, documents;
  for (const SourceOptions& source : recipe.sources()) {
    files.push_back(source.tokens.string());
    documents.push_back(describe_documents(source));
  }
  const std::string all = fmt::format("{}", fmt::join(files, ", "));
  return (data.made ? "made, as there is no " + all : fmt::format("{}, {}", all, counted(data.num_samples, "sample"))) +
         fmt::format("{}", fmt::join(documents, ""));
}

/// Returns "; parallel.pipeline.layers [1, 2], was [3, 5]", or nothing where the recipe has no such key.
std::string shrunk_stages_text(const Recipe& asked, const Recipe& shrunk) {
  const std::vector<int64_t>&was = asked.parallel.pipeline.layers, &now = shrunk.parallel.pipeline.layers;
  if (now == was) return "";
  const std::string before = fmt::format("[{}]", fmt::join(was, ", "));
  if (now.empty()) return "; without parallel.pipeline.layers " + before + ", as the mesh has no pp";
  return fmt::format("; parallel.pipeline.layers [{}], was {}", fmt::join(now, ", "), before);
}

std::string describe_parallelism(const Decisions& decisions) {
  const MeshLayout& mesh = decisions.layout;
  std::vector<std::string> parts;
  if (mesh.size(kTensorAxis) > 1) {
    parts.push_back(std::string("sequence parallel ") + (decisions.sequence_parallel ? "on" : "off"));
  }
  if (mesh.size(kContextAxis) > 1) parts.push_back("context parallel " + describe(decisions.context));
  if (mesh.size(kDataAxis) * mesh.size(kContextAxis) > 1) parts.push_back("fsdp " + describe(decisions.sharding));
  if (mesh.size(kPipelineAxis) > 1) parts.push_back("pipeline " + describe(decisions.pipeline));
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string title(Kind kind) {
  switch (kind) {
    case Kind::Loss:
      return "loss";
    case Kind::GradientNorm:
      return "gradient norm";
    case Kind::Gradient:
      return "gradient";
    case Kind::Weight:
      return "weight update";
    case Kind::AllGradients:
      return "all gradients";
    case Kind::AllWeights:
      return "all weight updates";
    case Kind::Choices:
      return "tokens' experts";
  }
  return "";
}

std::vector<const Comparison*> of_kind(const std::vector<Comparison>& all, Kind kind) {
  std::vector<const Comparison*> found;
  for (const Comparison& each : all) {
    if (each.kind == kind) found.push_back(&each);
  }
  return found;
}

/// Returns true when the movement is lost in rounding: in bf16 that is within the bound and shows nothing.
bool says_nothing(const Comparison& each) {
  return each.bound >= 1;
}

/// Returns the number that exceeds its bound most, or is closest to it, among those that show something.
const Comparison& worst_of(const std::vector<const Comparison*>& some) {
  const auto excess = [](const Comparison* each) {  // a difference that is not a number exceeds every bound
    if (each->difference != each->difference) return 1e300;
    return each->equal() && says_nothing(*each) ? 0 : each->difference / each->bound;
  };
  return **std::max_element(some.begin(), some.end(),
                            [&](const Comparison* a, const Comparison* b) { return excess(a) < excess(b); });
}

std::string on_rank(const Comparison& each, const MeshLayout& layout) {
  return layout.size() == 1 ? "" : fmt::format(" on rank {} ({})", each.rank, layout.describe(each.rank));
}

std::string row(const std::string& what, const Comparison& each, const MeshLayout& layout) {
  std::string text = fmt::format("  {:<20} {:>18.12g} {:>18.12g}  {:>10.1e} {:>8.1e}  {}", what, each.value,
                                 each.reference, each.difference, each.bound, each.name);
  if (each.equal() && says_nothing(each)) text += fmt::format("{}rounding alone", each.name.empty() ? "" : "  ");
  if (!each.equal()) text += fmt::format("{}differs{}", each.name.empty() ? "" : "  ", on_rank(each, layout));
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

bool kind_equal(const std::vector<Comparison>& all, Kind kind) {
  return std::all_of(all.begin(), all.end(), [&](const Comparison& each) { return each.kind != kind || each.equal(); });
}

bool gradients_equal(const std::vector<Comparison>& all) {
  return kind_equal(all, Kind::Gradient) && kind_equal(all, Kind::AllGradients);
}

/// Returns the number with the largest difference: "gradient of NAME". Gradients come before updates and norm.
std::string most_different(const std::vector<Comparison>& all) {
  for (const Kind kind :
       {Kind::Gradient, Kind::AllGradients, Kind::Weight, Kind::AllWeights, Kind::Loss, Kind::GradientNorm}) {
    if (kind_equal(all, kind)) continue;
    const std::string& name = worst_of(of_kind(all, kind)).name;
    return title(kind) + (name.empty() ? "" : " of " + name);
  }
  return "nothing";
}

/// Describes the last stage of the computation that was correct.
std::string describe_stage(const std::vector<Comparison>& all) {
  if (gradients_equal(all)) {
    return kind_equal(all, Kind::Loss) && kind_equal(all, Kind::GradientNorm)
               ? "every gradient of the first step is equal: look at the optimizer"
               : "every gradient of the first step is equal: look at how the loss and the norm are computed, not at "
                 "the model; weights follow from the norm where gradients are clipped";
  }
  return of_kind(all, Kind::Loss).front()->equal()
             ? "the loss of the first step is equal: the forward is right; look at the backward and the sums after it"
             : "the loss of the first step differs: the forward, its data, or the count of labels that divides it "
               "is wrong";
}

std::string describe_axis(const AxisFinding& finding, bool all_gradients_equal, const MeshLayout& layout) {
  const Replicas& replicas = finding.replicas;
  const std::string& axis = replicas.axis;
  const bool single = finding.alone.empty(), alone_differs = single || !all_equal(finding.alone);
  std::string text, cause;
  if (replicas.num_different > 0) {
    text = fmt::format("gradients differ between {} replicas ({} of {}, most: {})", axis, replicas.num_different,
                       replicas.num_compared, replicas.worst);
    cause = fmt::format("a sum over {}{} is missing or wrong", axis, alone_differs ? "" : " and another axis together");
  } else if (axis == kPipelineAxis) {
    text = "pp ranks have different layers";
    if (replicas.num_compared > 0) text += ", and the same gradient of the embedding";
    if (alone_differs && !all_gradients_equal) {
      cause = "the messages between the stages, or the sum of a gradient that two stages have, are wrong";
    }
  } else if (replicas.num_compared == 0) {
    text = axis + " ranks keep shards of the gradients";
    if (alone_differs && !all_gradients_equal) {
      cause = "a sum over " + axis + ", or the input of each of its ranks, is wrong";
    }
  } else {
    text = axis + " replicas hold the same gradients";
    if (alone_differs && !all_gradients_equal) {
      cause = "the communication over " + axis + " inside the layers, or the input of each of its ranks, is wrong";
    }
  }
  if (!single) {
    text += fmt::format("; {}={} alone is {}", axis, layout.size(axis), alone_differs ? "DIFFERENT" : "equal");
    if (alone_differs) text += " (most: " + most_different(finding.alone) + ")";
  }
  return "  " + text + (cause.empty() ? "" : ": " + cause) + "\n";
}

}  // namespace

std::string describe_verification(const VerifySetup& setup, const VerifyOptions& options, const VerifyData& data) {
  const Recipe &asked = setup.asked, &recipe = setup.recipe;
  std::string text =
      fmt::format("{}: mesh {} against one rank\n", asked.file.empty() ? asked.name : asked.file.string(),
                  setup.decisions.layout.describe());
  const auto line = [&](const char* what, const std::string& content) {
    if (!content.empty()) text += fmt::format("  {:<10} {}\n", what, content);
  };
  line("model", asked.model.shape.family + ", " + describe_model(asked.model.shape));
  if (options.shrink) line("shrunk to", describe_model(recipe.model.shape) + shrunk_stages_text(asked, recipe));
  if (options.samples != nullptr) {
    line("weights", "those of " + asked.model.hf.string());
  } else {
    line("weights", fmt::format("drawn from train.seed {}", recipe.train.seed) +
                        (asked.model.hf.empty() ? "" : "; none are read from " + asked.model.hf.string()));
    line("data", describe_data(asked.data, data));
  }
  line("training",
       fmt::format("{} of {} of {}, micro-batch {}; {}", counted(options.steps, "step"),
                   counted(recipe.train.global_batch, "sample"), counted(recipe.train.sequence_length, "token"),
                   recipe.train.micro_batch, describe_optimizer(recipe, asked)));
  line("parallel", describe_parallelism(setup.decisions));
  line("precision", fmt::format("{}{} on {}", options.precision, instead_of(asked.train.precision, options.precision),
                                options.device));
  if (is_rounded(options.precision)) {
    line("", "compared with one rank in fp32; bounds follow from one rank in " + options.precision);
  }
  if (!options.skipped_sums.empty()) {
    line("fault", "sums for " + options.skipped_sums + " are left out: each rank keeps its own contribution");
  }
  return text;
}

std::string describe_choices(const ChoiceComparison& choices) {
  if (!choices.replayed || choices.compared == 0) return "";
  return fmt::format("experts: the choices of one rank, of which rounding on this mesh would change {} of {}\n",
                     with_separators(choices.changed), with_separators(choices.compared));
}

std::string comparison_table(const std::vector<Comparison>& all, const MeshLayout& layout, bool every_parameter) {
  const bool rounded = !of_kind(all, Kind::AllGradients).empty();
  std::string text = fmt::format("  {:<20} {:>18} {:>18}  {:>10} {:>8}\n", "",
                                 layout.size() == 1 ? "again" : std::to_string(layout.size()) + " ranks",
                                 rounded ? "1 rank in fp32" : "1 rank", "difference", "bound");
  for (const Kind kind : kKinds) {
    const std::vector<const Comparison*> some = of_kind(all, kind);
    if (some.empty()) continue;
    if (every_parameter || some.size() == 1) {
      for (const Comparison* each : some) text += row(title(kind), *each, layout);
    } else {
      text += row(std::string("worst ") + title(kind), worst_of(some), layout);
    }
  }
  if (all_equal(all)) return text;
  return text + (rounded ? "  difference: |a - b| / |b|, of tensors by their norms; b: one rank's in fp32\n"
                         : "  difference: of loss and norm |a - b| / |b|, of gradients max|a - b| / max|b|, of weight "
                           "updates norm(a - b) / norm(b); b: one rank's\n");
}

bool all_equal(const std::vector<Comparison>& all) {
  return std::all_of(all.begin(), all.end(), [](const Comparison& each) { return each.equal(); });
}

std::string verdict(const std::vector<Comparison>& all) {
  if (all_equal(all)) {
    const auto number = [&](Kind kind) { return static_cast<int64_t>(of_kind(all, kind).size()); };
    return fmt::format("equal: loss, gradient norm, {} and {} are within their bounds\n",
                       counted(number(Kind::Gradient), "gradient"), counted(number(Kind::Weight), "weight update"));
  }
  std::vector<std::string> parts;
  for (const Kind kind : kKinds) {
    const std::vector<const Comparison*> some = of_kind(all, kind);
    const auto equal = std::count_if(some.begin(), some.end(), [](const Comparison* each) { return each->equal(); });
    const int64_t different = static_cast<int64_t>(some.size()) - equal;
    if (different == 0) continue;
    parts.push_back(some.size() == 1 ? title(kind)
                                     : fmt::format("{} of {}", different, counted(some.size(), title(kind))));
  }
  return fmt::format("DIFFERENT: {}\n", fmt::join(parts, "; "));
}

std::string diagnosis(const std::vector<Comparison>& all, const std::vector<AxisFinding>& axes,
                      const MeshLayout& layout) {
  if (axes.empty())
    return "where to look:\n  the same training on one rank gave two different results: a random number is not "
           "seeded\n";
  std::string text = "where to look:\n  " + describe_stage(all) + "\n";
  for (const AxisFinding& finding : axes) text += describe_axis(finding, gradients_equal(all), layout);
  const bool each_equal = std::all_of(axes.begin(), axes.end(), [](const AxisFinding& finding) {
    return !finding.alone.empty() && all_equal(finding.alone);
  });
  if (each_equal)
    text += "  each axis alone is equal: the fault is where several axes combine, such as the sums over cp and tp\n";
  return text;
}

}  // namespace meshtrain

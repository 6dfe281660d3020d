#include "runtime/program/against/explain.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>

#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "runtime/program/against/parameter_kinds.h"
#include "runtime/training/model/folder_tensors.h"

namespace meshtrain {
namespace {

constexpr const char* kNoNumber = "the factor is not a number of ranks, micro-batches or tokens in this step";

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

bool near(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

/// The ranks and micro-batches of a step.
struct Division {
  explicit Division(const OwnStep& own) {
    for (const BatchPart& part : own.parts) {
      by_rank[part.rank] += static_cast<double>(part.num_counted);
      by_micro_batch[part.micro_batch] += static_cast<double>(part.num_counted);
    }
    num_micro_batches = static_cast<int64_t>(by_micro_batch.size());
    num_ranks = static_cast<int64_t>(by_rank.size());
  }

  int64_t num_ranks, num_micro_batches;
  std::map<int64_t, double> by_rank, by_micro_batch;  // counted labels
};

/// Says what the factor of something is that belongs once: "summed over dp=2 ..."; empty when it is no number of the
/// step.
std::string describe_factor(double factor, const StepDump& dump, const OwnStep& own, double tolerance) {
  std::vector<std::pair<std::string, double>> numbers;
  for (const auto& [axis, size] : dump.mesh()) {
    if (size > 1) numbers.emplace_back(axis + "=" + std::to_string(size), static_cast<double>(size));
  }
  const Division division(own);
  if (division.num_micro_batches > 1) {
    numbers.emplace_back(std::to_string(division.num_micro_batches) + " micro-batches",
                         static_cast<double>(division.num_micro_batches));
  }
  const size_t singles = numbers.size();
  for (size_t i = 0; i < singles; ++i) {
    for (size_t j = i + 1; j < singles; ++j) {
      numbers.emplace_back(numbers[i].first + " and " + numbers[j].first, numbers[i].second * numbers[j].second);
    }
  }
  std::string found;
  for (const auto& [name, size] : numbers) {
    std::string one;
    if (near(factor, size, tolerance)) one = "summed over " + name + " instead of averaged, or summed twice";
    if (near(factor, 1 / size, tolerance)) one = "divided once too often by " + name + ", or not summed over it";
    if (near(factor, size * size, tolerance) && size > 1) one = "summed twice over " + name;
    if (!one.empty()) found += (found.empty() ? "" : "; or ") + one;
  }
  const double all = static_cast<double>(dump.labels().numel()), counted = static_cast<double>(own.num_counted());
  const double per_sample = static_cast<double>(dump.labels().size(0)) / counted;
  if (found.empty() && near(factor, counted / all, tolerance)) found = "divided by all tokens, not by those that count";
  if (found.empty() && near(factor, counted, tolerance)) found = "a sum over tokens, not a mean";
  if (found.empty() && near(factor, 1 / per_sample, tolerance)) found = "divided by samples, not by tokens";
  return found;
}

/// Returns describe_factor(), or a sentence that the factor is no number of the step.
std::string explain_factor(double factor, const StepDump& dump, const OwnStep& own, double tolerance) {
  const std::string text = describe_factor(factor, dump, own, tolerance);
  return text.empty() ? kNoNumber : text;
}

/// A way to add up parts, and the weight that it gives to each.
struct Way {
  std::string text;
  std::vector<double> weights;
};

std::vector<Way> ways(const OwnStep& own) {
  const Division division(own);
  const auto all = static_cast<double>(own.num_counted());
  std::vector<Way> result;
  const auto add = [&](const std::string& text, const std::function<double(const BatchPart&)>& weight) {
    Way& way = result.emplace_back(Way{text, {}});
    for (const BatchPart& part : own.parts) way.weights.push_back(weight(part));
  };
  const auto counted = [](const BatchPart& part) { return static_cast<double>(part.num_counted); };
  add("", [](const BatchPart&) { return 1.0; });
  if (division.num_ranks > 1) {
    add("the mean of the ranks' means: ranks count equally, however many labels they have", [&](const BatchPart& part) {
      return all / (static_cast<double>(division.num_ranks) * division.by_rank.at(part.rank));
    });
  }
  if (division.num_micro_batches > 1) {
    add("the mean of the micro-batches' means: micro-batches count equally, however many labels they have",
        [&](const BatchPart& part) { return all / (static_cast<double>(own.parts.size()) * counted(part)); });
  }
  for (const auto& [rank, of_rank] : division.by_rank) {
    if (division.num_ranks == 1) break;
    const std::string text = "rank " + std::to_string(rank) + "'s samples alone: the sum over data ranks is missing";
    add(text,
        [&, rank = rank, of_rank = of_rank](const BatchPart& part) { return part.rank == rank ? all / of_rank : 0.0; });
    if (division.num_micro_batches == 1) continue;
    add(text, [&, rank = rank](const BatchPart& part) {
      return part.rank == rank ? all / (counted(part) * static_cast<double>(division.num_micro_batches)) : 0.0;
    });
  }
  for (const auto& [text, micro_batch] :
       {std::pair{"the last micro-batch alone: the others are lost", division.by_micro_batch.rbegin()->first},
        {"the first micro-batch alone: the others are lost", int64_t{0}}}) {
    if (division.num_micro_batches == 1) break;
    const double of_micro_batch = division.by_micro_batch.at(micro_batch);
    add(text, [&, micro = micro_batch](const BatchPart& part) { return part.micro_batch == micro ? 1.0 : 0.0; });
    add(text, [&, micro = micro_batch](const BatchPart& part) {
      return part.micro_batch == micro ? all / of_micro_batch : 0.0;
    });
    add(text, [&, micro = micro_batch](const BatchPart& part) {
      return part.micro_batch == micro ? all / (counted(part) * static_cast<double>(division.num_ranks)) : 0.0;
    });
  }
  return result;
}

/// Returns the length of the sum of each rank's gradients.
std::map<int64_t, double> lengths_by_rank(const OwnStep& own) {
  std::map<int64_t, double> squares;
  for (const std::string& name : own.names) {
    std::map<int64_t, at::Tensor> sums;
    for (const BatchPart& part : own.parts) {
      at::Tensor& sum = sums[part.rank];
      sum = sum.defined() ? sum + part.gradients.at(name) : part.gradients.at(name);
    }
    for (const auto& [rank, sum] : sums) squares[rank] += std::pow(at::linalg_vector_norm(sum).item<double>(), 2);
  }
  for (auto& [rank, square] : squares) square = std::sqrt(square);
  return squares;
}

/// Returns the ways in which each rank clips the gradient of its own mean, or of its share of the global mean, before
/// the ranks' mean.
std::vector<Way> clipped_ways(const StepDump& dump, const OwnStep& own) {
  const Division division(own);
  if (dump.clip_norm() <= 0 || division.num_ranks == 1 || !dump.is_complete()) return {};
  const auto all = static_cast<double>(own.num_counted()), ranks = static_cast<double>(division.num_ranks);
  const std::map<int64_t, double> lengths = lengths_by_rank(own);
  std::vector<Way> result;
  for (const bool of_means : {false, true}) {
    Way& way = result.emplace_back(Way{"each rank's gradients are clipped before their sum", {}});
    for (const BatchPart& part : own.parts) {
      const double divisor = of_means ? division.by_rank.at(part.rank) : all / ranks;
      const double factor = std::min(1.0, dump.clip_norm() / (lengths.at(part.rank) / divisor + 1e-6));
      way.weights.push_back(factor * all / (ranks * divisor));
    }
  }
  return result;
}

std::string list(const std::vector<double>& numbers) {
  std::string text;
  for (const double number : numbers) text += (text.empty() ? "" : ", ") + text_of(number);
  return text;
}

std::vector<Way> all_ways(const StepDump& dump, const OwnStep& own) {
  std::vector<Way> result = ways(own);
  for (Way& way : clipped_ways(dump, own)) result.push_back(std::move(way));
  return result;
}

/// Explains weights of parts; empty when none of the `possible` ways has them.
std::string describe_weights(const PartFit& fit, const std::vector<Way>& possible, const StepDump& dump,
                             const OwnStep& own) {
  for (const bool with_factor : {false, true}) {
    for (const Way& way : possible) {
      double product = 0, square = 0, largest = 0;
      for (size_t k = 0; k < way.weights.size(); ++k) {
        product += way.weights[k] * fit.weights[k];
        square += way.weights[k] * way.weights[k];
        largest = std::max(largest, std::abs(fit.weights[k]));
      }
      const double factor = with_factor ? product / square : 1;
      bool matches = true;
      for (size_t k = 0; k < way.weights.size(); ++k) {
        matches = matches && std::abs(fit.weights[k] - factor * way.weights[k]) <= fit.tolerance * largest;
      }
      if (!matches) continue;
      if (way.text.empty()) return explain_factor(factor, dump, own, fit.tolerance);
      if (!with_factor) return way.text;
      return way.text + "; and " + text_of(factor) + " times: " + explain_factor(factor, dump, own, fit.tolerance);
    }
  }
  return "";
}

std::vector<std::string> names_of(const std::vector<const GradientFacts*>& facts) {
  std::vector<std::string> names;
  for (const GradientFacts* fact : facts) names.push_back(fact->name);
  return names;
}

std::string worst(const std::vector<const GradientFacts*>& some, double GradientFacts::*by) {
  const GradientFacts* most = some.front();
  for (const GradientFacts* fact : some) most = fact->*by > most->*by ? fact : most;
  char length[32];
  std::snprintf(length, sizeof length, "%.2g", most->*by);
  return length + std::string(" of its length at most (") + most->name + ")";
}

/// Explains a factor that all of some gradients have.
std::string explain_common_factor(double factor, const StepDump& dump, const OwnStep& own, double tolerance) {
  std::string text = describe_factor(factor, dump, own, tolerance);
  if (!text.empty() || dump.clip_norm() <= 0) return text.empty() ? kNoNumber : text;
  if (near(factor, dump.clip_norm() / (own.norm() + 1e-6), tolerance)) {
    return "already clipped: a dump must have the gradients from before clipping";
  }
  for (const Way& way : clipped_ways(dump, own)) {
    if (std::ranges::all_of(way.weights, [&](double weight) { return near(weight, factor, tolerance); })) {
      return way.text;
    }
  }
  return kNoNumber;
}

/// Explains parameters of which each has other weights of parts, as when ranks with different gradients wrote the
/// tensors in turns; empty when one has no explanation.
std::string explain_each(const StepDump& dump, const OwnStep& own, const std::vector<GradientFacts*>& some) {
  const std::vector<Way> possible = all_ways(dump, own);
  std::set<std::string> texts;
  for (GradientFacts* fact : some) {
    const PartFit fit = fit_parts(dump, own, {fact});
    const std::string text = fact->is_of_parts() ? describe_weights(fit, possible, dump, own) : "";
    if (text.empty()) return "";
    texts.insert(text);
  }
  std::string text;
  for (const std::string& one : texts) text += (text.empty() ? "" : "; in other tensors ") + one;
  return text;
}

/// Explains parameters that differ together. `of`: "gradients", or the gradients of some.
Finding explain_together(const std::string& of, const StepDump& dump, const OwnStep& own,
                         const std::vector<GradientFacts*>& some) {
  const std::vector<const GradientFacts*> facts(some.begin(), some.end());
  double least = some.front()->factor, most = least;
  for (const GradientFacts* fact : some) least = std::min(least, fact->factor), most = std::max(most, fact->factor);
  const bool multiple = std::ranges::all_of(some, [](const GradientFacts* fact) { return fact->is_multiple(); });
  const double tolerance = facts.front()->bound > 1e-3 ? 0.05 : 2e-3;
  if (multiple && near(least, most, tolerance)) {
    return {of + ": " + explain_common_factor((least + most) / 2, dump, own, tolerance),
            "each is " + text_of(least) + " to " + text_of(most) +
                " times that of one rank, and apart from that differs by " +
                worst(facts, &GradientFacts::beyond_factor)};
  }
  if (own.parts.size() > 1) {
    const PartFit fit = fit_parts(dump, own, some);
    if (std::ranges::all_of(some, [](const GradientFacts* fact) { return fact->is_of_parts(); })) {
      const std::string way = describe_weights(fit, all_ways(dump, own), dump, own);
      return {of + ": " + (way.empty() ? "the parts of the batch are not weighted by their numbers of labels" : way),
              "the weights of the parts (ranks, then micro-batches), 1 where right, are " + list(fit.weights) +
                  ", and apart from them gradients differ by " + worst(facts, &GradientFacts::beyond_parts)};
    }
    const std::string each = explain_each(dump, own, some);
    if (!each.empty()) {
      return {of + ": " + each, "ranks took turns in writing the tensors, and apart from this each differs by " +
                                    worst(facts, &GradientFacts::beyond_parts)};
    }
  }
  return {"", ""};
}

}  // namespace

std::vector<Finding> explain_gradients(const StepDump& dump, const OwnStep& own, std::vector<GradientFacts>& facts) {
  const bool tied = dump.shape().tie_word_embeddings;
  std::vector<GradientFacts*> wrong;
  std::vector<const GradientFacts*> missing, different;
  for (GradientFacts& fact : facts) {
    if (fact.missing) {
      missing.push_back(&fact);
    } else if (!fact.equal()) {
      wrong.push_back(&fact);
      different.push_back(&fact);
    }
  }
  std::vector<Finding> findings;
  if (!missing.empty()) {
    findings.push_back({"no gradients: " + describe_kinds(names_of(missing), own.names, tied),
                        counted(missing.size(), "parameter") + " of " + std::to_string(facts.size()) +
                            ": frozen, or not used in the forward"});
  }
  if (wrong.empty()) return findings;
  const size_t compared = facts.size() - missing.size();
  const bool all = wrong.size() == compared;
  const std::string of = all ? "gradients" : "gradients of " + describe_kinds(names_of(different), own.names, tied);
  Finding together = explain_together(of, dump, own, wrong);
  if (!together.what.empty()) {
    if (!all) together.evidence += "; the other " + std::to_string(compared - wrong.size()) + " are equal";
    findings.push_back(std::move(together));
    return findings;
  }
  std::string ranks;
  for (const auto& [axis, size] : dump.mesh()) {
    if (axis != "dp" && size > 1) ranks += (ranks.empty() ? "" : ", ") + axis + "=" + std::to_string(size);
  }
  const std::string numbers = counted(wrong.size(), "gradient") + " of " + std::to_string(compared) + " differ by " +
                              worst(different, &GradientFacts::difference) +
                              ", and are neither multiples of one rank's nor sums of parts of the batch";
  if (all) {
    findings.push_back({"gradients: the forward or the backward computes something else", numbers});
  } else {
    findings.push_back(
        {of + ": a part is missing" + (ranks.empty() ? "" : ", as when a sum over " + ranks + " is missing"),
         numbers + "; the other " + std::to_string(compared - wrong.size()) + " are equal"});
  }
  return findings;
}

std::vector<Finding> explain_loss(const StepDump& dump, const OwnStep& own, double bound) {
  const double loss = own.loss();
  if (near(dump.loss(), loss, bound)) return {};
  const std::string evidence = "it reports " + text_of(dump.loss()) + ", one rank has " + text_of(loss);
  const std::vector<Way> possible = ways(own);
  std::vector<double> losses;
  for (const Way& way : possible) {
    double sum = 0;
    for (size_t k = 0; k < own.parts.size(); ++k) sum += way.weights[k] * own.parts[k].loss_sum;
    losses.push_back(sum / static_cast<double>(own.num_counted()));
    if (near(dump.loss(), losses.back(), bound)) return {{"loss: " + way.text, evidence}};
  }
  for (size_t i = 0; i < possible.size(); ++i) {
    const std::string text = describe_factor(dump.loss() / losses[i], dump, own, std::min(bound, 1e-3));
    if (text.empty()) continue;
    return {{"loss: " + possible[i].text + (possible[i].text.empty() ? "" : "; and ") + text, evidence}};
  }
  return {{"loss: not that of the counted labels", evidence}};
}

double gradient_norm_of(const std::vector<GradientFacts>& facts) {
  double squares = 0;
  for (const GradientFacts& fact : facts) squares += fact.length * fact.length;
  return std::sqrt(squares);
}

std::vector<Finding> explain_norm(const StepDump& dump, const OwnStep& own, const std::vector<GradientFacts>& facts,
                                  double bound) {
  if (!dump.grad_norm()) return {};
  std::map<std::string, double> lengths;
  for (const GradientFacts& fact : facts) lengths[fact.name] = fact.length;
  if (!dump.is_complete()) {
    if (!std::ranges::all_of(facts, &GradientFacts::equal)) return {};
    lengths = own.lengths;
  }
  const auto squares_of = [&](const std::function<bool(const std::string&)>& has) {
    double squares = 0;
    for (const auto& [name, length] : lengths) squares += has(name) ? length * length : 0;
    return squares;
  };
  const double reported = *dump.grad_norm();
  const double norm = std::sqrt(squares_of([](const std::string&) { return true; }));
  if (near(reported, norm, bound)) return {};
  const std::string evidence = "it reports " + text_of(reported) + ", " +
                               (dump.is_complete() ? "its gradients have " : "those of one rank have ") + text_of(norm);
  const std::vector<std::pair<std::string, std::function<bool(const std::string&)>>> kinds = {
      {dump.shape().tie_word_embeddings ? "the tied embedding" : "the embedding",
       [](const std::string& name) { return name == kEmbedding; }},
      {"the head", [](const std::string& name) { return name == kHead; }},
      {"the embedding and the head", [](const std::string& name) { return name == kEmbedding || name == kHead; }},
      {"norms", [](const std::string& name) { return name.find("norm") != std::string::npos; }},
      {"parameters of one dimension", [&](const std::string& name) { return own.shapes.at(name).size() == 1; }},
      {"matrices of blocks", [&](const std::string& name) {
         return own.shapes.at(name).size() == 2 && name != kEmbedding && name != kHead;
       }}};
  std::vector<double> sizes;
  for (const auto& [axis, size] : dump.mesh()) {
    if (size > 1) sizes.push_back(static_cast<double>(size));
  }
  for (const auto& [kind, has] : kinds) {
    const double some = squares_of(has), rest = norm * norm - some;
    if (some == 0 || rest <= 0) continue;
    if (near(reported, std::sqrt(rest), bound)) return {{"norm: lacks " + kind, evidence}};
    if (near(reported, std::sqrt(rest + 2 * some), bound)) return {{"norm: counts " + kind + " twice", evidence}};
    for (const double size : sizes) {
      if (near(reported, std::sqrt(rest + size * some), bound)) {
        return {{"norm: counts " + kind + " " + text_of(size) + " times, once on each rank", evidence}};
      }
    }
  }
  for (const auto& [axis, size] : dump.mesh()) {
    const double root = std::sqrt(static_cast<double>(size));
    if (size == 1) continue;
    const std::string name = axis + "=" + std::to_string(size);
    if (near(reported * root, norm, bound)) return {{"norm: about that of one rank's shard, with " + name, evidence}};
    if (near(reported, norm * root, bound))
      return {{"norm: squares are summed over " + name + ", whose ranks have the same gradients", evidence}};
  }
  const std::string text = describe_factor(reported / norm, dump, own, bound);
  if (!text.empty()) return {{"norm: " + text, evidence}};
  if (reported < norm) return {{"norm: only part of the gradients, such as one rank's shards", evidence}};
  return {{"norm: not that of the gradients", evidence}};
}

}  // namespace meshtrain

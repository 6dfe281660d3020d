// Writes a step of another program that has a fault of docs/elsewhere.md: made_step FAULT FOLDER.

#include <ATen/Functions.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/training/data/documents.h"
#include "tests/against/made_step.h"

using namespace meshtrain;
using testing::MadeStep;
using testing::MadeStepOptions;

namespace {

using Tensors = MadeStep::Tensors;

bool is_norm(const std::string& name) {
  return name.find("norm") != std::string::npos;
}

void multiply(MadeStep& made, double factor) {
  Tensors gradients;
  for (const auto& [name, values] : made.gradients) gradients[name] = values * factor;
  made.take(gradients);
}

/// Gives the means of parts these weights.
void weigh_means(MadeStep& made, const std::function<double(const BatchPart&)>& weight) {
  std::vector<double> weights;
  double loss = 0;
  for (const BatchPart& part : made.own.parts) {
    const double of_mean = weight(part) / static_cast<double>(part.num_counted);
    weights.push_back(of_mean * static_cast<double>(made.own.num_counted()));
    loss += of_mean * part.loss_sum;
  }
  made.step["loss"] = loss;
  made.take(made.of_parts(weights));
}

void right_in_bf16(MadeStep& made) {
  Tensors gradients;
  for (const auto& [name, values] : made.gradients) gradients[name] = values.to(at::kBFloat16).to(at::kDouble);
  made.take(gradients);
}

/// Leaves norms the gradients of half of the positions, as a rank of tp has them under sequence parallel.
void norms_not_summed(MadeStep& made) {
  made.step["mesh"] = {{"dp", 2}, {"tp", 2}};
  StepReading half = reading_of(StepDump(made.folder()));
  half.labels = half.labels.clone();
  half.labels.narrow(1, 6, 6).fill_(-100);
  Tensors gradients = made.gradients;
  const nlohmann::json loss = made.step["loss"];
  made.take_reading(half);
  for (auto& [name, values] : gradients) {
    if (is_norm(name)) values = made.gradients.at(name) / 2;
  }
  made.step["loss"] = loss;
  made.take(gradients);
}

void labels_shifted_twice(MadeStep& made) {
  StepReading shifted = reading_of(StepDump(made.folder()));
  shifted.labels = at::roll(shifted.labels, -1, 1);
  shifted.labels.select(1, shifted.labels.size(1) - 1).fill_(-100);
  made.take_reading(shifted);
}

void clip_by(MadeStep& made, double norm) {
  made.step["grad_norm"] = norm;
  made.update(MadeStep::kClip / norm, MadeStep::kDecay);
}

void norm_of_one_shard(MadeStep& made) {
  Tensors shards;
  for (const auto& [name, values] : made.gradients) shards[name] = values.narrow(0, 0, values.size(0) / 2);
  clip_by(made, MadeStep::norm(shards));
}

void norms_counted_on_each_rank(MadeStep& made) {
  made.step["mesh"] = {{"dp", 2}, {"tp", 2}};
  Tensors norms;
  for (const auto& [name, values] : made.gradients) {
    if (is_norm(name)) norms[name] = values;
  }
  clip_by(made, std::hypot(MadeStep::norm(made.gradients), MadeStep::norm(norms)));
}

void norms_decayed(MadeStep& made) {
  nlohmann::json& groups = made.step["optimizer"]["groups"];
  groups.push_back(groups[0]);
  groups[1]["weight_decay"] = 0;
  for (nlohmann::json& group : groups) group["parameters"] = nlohmann::json::array();
  for (const std::string& name : made.own.names) groups[is_norm(name) ? 1 : 0]["parameters"].push_back(name);
}

void attention_across_documents(MadeStep& made) {
  made.step["mesh"] = {{"cp", 2}};
  const StepDump dump(made.folder());
  made.take_reading({dump.labels(), {}, document_positions(dump.documents(), dump.inputs().size(1))});
}

struct Fault {
  MadeStepOptions options;
  std::function<void(MadeStep&)> plant;
};

const std::map<std::string, Fault> kFaults = {
    {"right_in_bf16", {{}, right_in_bf16}},
    {"summed_twice", {{.micro_batches = 1}, [](MadeStep& made) { multiply(made, 2); }}},
    {"norms_not_summed", {{}, norms_not_summed}},
    {"mean_of_ranks",
     {{.micro_batches = 1}, [](MadeStep& made) { weigh_means(made, [](const BatchPart&) { return 0.5; }); }}},
    {"accumulation_not_divided",
     {{.ranks = 1, .micro_batches = 4},
      [](MadeStep& made) { weigh_means(made, [](const BatchPart&) { return 1.0; }); }}},
    {"last_micro_batch",
     {{.ranks = 2, .micro_batches = 4},
      [](MadeStep& made) {
        const nlohmann::json loss = made.step["loss"];
        weigh_means(made, [](const BatchPart& part) { return part.micro_batch == 3 ? 0.125 : 0.0; });
        made.step["loss"] = loss;
      }}},
    {"labels_shifted_twice", {{}, labels_shifted_twice}},
    {"norm_of_one_shard", {{}, norm_of_one_shard}},
    {"norms_counted_on_each_rank", {{}, norms_counted_on_each_rank}},
    {"loss_not_summed",
     {{.ranks = 1, .micro_batches = 1},
      [](MadeStep& made) {
        made.step["mesh"] = {{"cp", 2}};
        made.step["loss"] = made.own.loss() / 2;
      }}},
    {"norms_decayed", {{}, norms_decayed}},
    {"weights_in_bf16", {{.weights = at::kBFloat16}, [](MadeStep&) {}}},
    {"attention_across_documents", {{.ranks = 1, .documents = true}, attention_across_documents}},
};

}  // namespace

int main(int argc, char** argv) {
  const auto fault = argc == 3 ? kFaults.find(argv[1]) : kFaults.end();
  if (fault == kFaults.end()) {
    std::fputs("usage: made_step FAULT FOLDER\n", stderr);
    return 2;
  }
  MadeStep made(argv[2], fault->second.options);
  fault->second.plant(made);
  made.write();
  return 0;
}

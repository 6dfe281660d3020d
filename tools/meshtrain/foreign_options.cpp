#include "tools/meshtrain/foreign_options.h"

#include <algorithm>
#include <map>

#include "mesh/base/files/lower_case.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/yaml/known_keys.h"

namespace meshtrain {
namespace {

constexpr const char* kRanks = "mpirun -n N (or srun) starts ranks, and --mesh arranges them";

const std::map<std::string, std::string> kOptions = {
    {"nproc", kRanks},
    {"nproc_per_node", kRanks},
    {"num_processes", kRanks},
    {"num_gpus", kRanks},
    {"np", kRanks},
    {"n", kRanks},
    {"ngpu", kRanks},
    {"nnodes", "mpirun --host A:8,B:8 or srun -N starts ranks on several hosts"},
    {"num_nodes", "mpirun --host A:8,B:8 or srun -N starts ranks on several hosts"},
    {"num_machines", "mpirun --host A:8,B:8 or srun -N starts ranks on several hosts"},
    {"node_rank", "the launcher, mpirun or srun, tells each rank its number"},
    {"machine_rank", "the launcher, mpirun or srun, tells each rank its number"},
    {"rdzv_endpoint", "the launcher, mpirun or srun, connects the ranks"},
    {"master_addr", "the launcher, mpirun or srun, connects the ranks"},
    {"master_port", "the launcher, mpirun or srun, connects the ranks"},
    {"config", "the recipe is an argument: meshtrain train RECIPE"},
    {"config_file", "the recipe is an argument: meshtrain train RECIPE"},
    {"job.config_file", "the recipe is an argument: meshtrain train RECIPE"},
    {"yaml_cfg", "the recipe is an argument: meshtrain train RECIPE"},
    {"deepspeed", "meshtrain recipe --from FILE makes a recipe of the configuration"},
    {"deepspeed_config", "meshtrain recipe --from FILE makes a recipe of the configuration"},
    {"output_dir", "it is --run-dir; --set train.export=FOLDER writes the final weights"},
    {"save", "it is --run-dir; --set checkpoint.every=STEPS writes checkpoints"},
    {"resume_from_checkpoint", "it is --resume"},
    {"load", "it is --resume"},
    {"overwrite_output_dir", "a run directory is never overwritten: give another --run-dir"},
    {"dry_run", "it is --check"},
};

constexpr const char* kTokens = "it is data prepare, which makes tokens of texts or conversations";
constexpr const char* kTrain = "it is train";
constexpr const char* kTuning =
    "it is train, with model.hf: FOLDER; data prepare --chat makes tokens of conversations (docs/data.md)";

const std::map<std::string, std::string> kCommands = {
    {"sft", kTuning},
    {"finetune", kTuning},
    {"finetuning", kTuning},
    {"fine_tune", kTuning},
    {"tune", kTuning},
    {"pretrain", kTrain},
    {"fit", kTrain},
    {"launch", kTrain},
    {"run", kTrain},
    {"resume", "it is train RECIPE --resume"},
    {"check", "it is train RECIPE --check"},
    {"validate", "it is train RECIPE --check"},
    {"prepare", kTokens},
    {"preprocess", kTokens},
    {"preprocess_data", kTokens},
    {"tokenize", kTokens},
    {"convert", "it is checkpoint export or checkpoint import; recipe --from FILE converts configurations"},
    {"export", "it is checkpoint export"},
    {"import", "it is checkpoint import"},
    {"eval", "it is evaluate"},
    {"chat", "it is generate"},
    {"infer", "it is generate"},
    {"inference", "it is generate"},
    {"sample", "it is generate"},
    {"estimate", "it is plan"},
    {"explain", "it is recipe --explain KEY"},
};

}  // namespace

std::string foreign_command(const std::string& word) {
  std::string name = lower_case(word);
  std::replace(name.begin(), name.end(), '-', '_');
  const auto found = kCommands.find(name);
  return found == kCommands.end() ? "" : "; here " + found->second;
}

std::string foreign_option(const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return "";
  std::string name = lower_case(word.substr(word[1] == '-' ? 2 : 1));
  name = name.substr(0, name.find('='));
  std::replace(name.begin(), name.end(), '-', '_');
  const auto found = kOptions.find(name);
  if (found != kOptions.end()) return "; here " + found->second;
  const KnownKeys& keys = recipe_keys();
  const std::string complete = keys.complete(name), mesh = "parallel.mesh.", it_is = "; here it is ";
  const auto of_mesh = [&](const std::string& key) {
    return it_is + key.substr(mesh.size()) + " of --mesh, as in --mesh pp=2,dp=2,tp=2";
  };
  if (complete.starts_with(mesh)) return of_mesh(complete);
  if (keys.find(complete) != nullptr) return "; here it is --set " + complete + "=VALUE";
  const size_t dot = name.rfind('.');
  const ForeignAnswer foreign = keys.foreign_word(dot == std::string::npos ? "" : name.substr(0, dot),
                                                  dot == std::string::npos ? name : name.substr(dot + 1));
  const std::string& here = foreign.text;
  if (foreign.kind == ForeignAnswer::Kind::Option) return it_is + here;
  if (foreign.kind != ForeignAnswer::Kind::Name) return foreign.here();
  if (here.starts_with(mesh)) return of_mesh(here);
  return keys.find(here) == nullptr ? foreign.here() : it_is + "--set " + here + "=VALUE";
}

}  // namespace meshtrain

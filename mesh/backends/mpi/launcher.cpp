#include "mesh/backends/mpi/launcher.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace meshtrain {
namespace {

/// Returns a number in the environment; 0 without one.
int64_t number(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::strtoll(text, nullptr, 10) : 0;
}

/// False in the script of sbatch and in the shell that salloc starts as a step: one process each, in a step with a
/// reserved number, to which variables of an outer step may have come down.
bool is_slurm_task() {
  constexpr uint32_t kFirstReserved = 0xfffffff0;
  return !std::getenv("SLURM_STEP_ID") || static_cast<uint32_t>(number("SLURM_STEP_ID")) < kFirstReserved;
}

/// RANK and WORLD_SIZE alone may be somebody else's.
bool is_torchrun_task() {
  return std::getenv("TORCHELASTIC_RUN_ID") != nullptr;
}

/// The variables by which a launcher tells a task its number and how many there are.
struct Launcher {
  const char* rank;
  const char* size;             ///< nullptr: it does not tell
  bool (*applies)() = nullptr;  ///< false: the variables do not speak of this process; nullptr: they always do

  bool speaks() const { return !applies || applies(); }
};

constexpr const char* kOfStep = "SLURM_STEP_NUM_TASKS";

/// Innermost first: an mpirun inside a Slurm allocation starts ranks of its own.
constexpr Launcher kLaunchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},  // mpirun of Open MPI
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},    // mpirun_rsh of MVAPICH
    {"PMI_RANK", "PMI_SIZE"},                          // mpiexec of MPICH, Intel MPI; srun --mpi=pmi2
    {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},            // the same, of this host alone
    {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},      // jsrun
    {"PALS_RANKID", "PALS_LOCAL_SIZE"},                // mpiexec of PALS; the size is that of this host
    {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},               // flux run
    {"RANK", "WORLD_SIZE", is_torchrun_task},          // torchrun
    {"PMIX_RANK", nullptr},                            // prun, srun --mpi=pmix
    {"SLURM_PROCID", kOfStep, is_slurm_task},          // srun
};

/// The tasks that the environment announces, and the variable that does.
struct Announcement {
  int64_t tasks = 1;
  std::string variable;
};

Announcement announcement() {
  for (const Launcher& launcher : kLaunchers) {
    if (launcher.size && launcher.speaks() && std::getenv(launcher.size)) {
      return {std::max<int64_t>(number(launcher.size), 1), launcher.size};
    }
  }
  for (const Launcher& launcher : kLaunchers) {
    if (launcher.speaks() && number(launcher.rank) > 0) return {number(launcher.rank) + 1, launcher.rank};
  }
  return {};
}

/// Returns this task's number as the launcher tells it; empty without a launcher.
std::string announced_rank() {
  for (const Launcher& launcher : kLaunchers) {
    if (!launcher.speaks()) continue;
    if (const char* rank = std::getenv(launcher.rank)) return rank;
  }
  return "";
}

std::string describe_task() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return "task " + announced_rank() + " on host " + host.data();
}

std::string describe_launch() {
  const Announcement announced = announcement();
  return describe_task() + ": the launcher announces " + std::to_string(announced.tasks) + " tasks (" +
         announced.variable +
         "), but MPI sees only this one: start them with srun --mpi=pmix, or with the mpirun "
         "of the MPI library that meshtrain was built with (Open MPI " +
         std::to_string(OMPI_MAJOR_VERSION) + "." + std::to_string(OMPI_MINOR_VERSION) + ")";
}

}  // namespace

LaunchError::LaunchError() : InputError(describe_launch()) {}

bool launched_by_mpi() {
  // PMIx alone tells a process its rank, and only MPI_Init the number of ranks.
  return announcement().tasks > 1 || (std::getenv("PMIX_RANK") && announcement().variable.empty());
}

int announced_ranks() {
  return static_cast<int>(announcement().tasks);
}

bool is_srun_without_pmi() {
  return announcement().tasks > 1 && announcement().variable == kOfStep && !std::getenv("PMIX_RANK");
}

bool is_announced_first() {
  const std::string rank = announced_rank();
  return rank.empty() || rank == "0";
}

}  // namespace meshtrain

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>

#include "mesh/backends/mpi/launcher.h"

namespace meshtrain {
namespace {

/// The environment variables that launchers set, replaced during a test.
class Launcher : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE",           "PMI_RANK",
                             "MV2_COMM_WORLD_SIZE",  "MV2_COMM_WORLD_RANK",  "MPI_LOCALNRANKS",    "PMIX_RANK",
                             "SLURM_PROCID",         "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID",      "SLURM_NTASKS",
                             "MPI_LOCALRANKID",      "JSM_NAMESPACE_RANK",   "JSM_NAMESPACE_SIZE", "PALS_RANKID",
                             "PALS_LOCAL_SIZE",      "FLUX_TASK_RANK",       "FLUX_JOB_SIZE",      "RANK",
                             "WORLD_SIZE",           "TORCHELASTIC_RUN_ID"}) {
      const char* value = std::getenv(name);
      before_[name] = value ? std::optional<std::string>(value) : std::nullopt;
      unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      unsetenv(name.c_str());
      if (value) setenv(name.c_str(), value->c_str(), 1);
    }
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(Launcher, NoneMeansOneRank) {
  EXPECT_EQ(announced_ranks(), 1);
  EXPECT_FALSE(launched_by_mpi());
}

TEST_F(Launcher, TheFirstRankIsAnnounced) {
  EXPECT_TRUE(is_announced_first()) << "a process without a launcher";
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    set(name, "0");
    EXPECT_TRUE(is_announced_first()) << name;
    set(name, "3");
    EXPECT_FALSE(is_announced_first()) << name;
    unsetenv(name);
  }
}

TEST_F(Launcher, OpenMpi) {
  set("OMPI_COMM_WORLD_SIZE", "8");
  set("PMIX_RANK", "3");
  EXPECT_EQ(announced_ranks(), 8);
  EXPECT_TRUE(launched_by_mpi());
  set("OMPI_COMM_WORLD_SIZE", "1");
  EXPECT_EQ(announced_ranks(), 1);
  EXPECT_FALSE(launched_by_mpi());
}

TEST_F(Launcher, MpichAndItsRelatives) {
  for (const char* name : {"PMI_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"}) {
    set(name, "4");
    EXPECT_EQ(announced_ranks(), 4) << name;
    EXPECT_TRUE(launched_by_mpi()) << name;
    unsetenv(name);
  }
}

TEST_F(Launcher, SlurmStep) {
  set("SLURM_PROCID", "2");
  set("SLURM_STEP_NUM_TASKS", "16");
  set("SLURM_NTASKS", "16");
  EXPECT_EQ(announced_ranks(), 16);
  EXPECT_TRUE(launched_by_mpi());
}

// As sbatch sets them, and salloc; a step's variables come down to a script that was submitted from inside a step.
TEST_F(Launcher, AnAllocationIsOneProcess) {
  set("SLURM_NTASKS", "16");
  EXPECT_EQ(announced_ranks(), 1) << "a shell of salloc";
  set("SLURM_PROCID", "0");
  for (const char* step : {"-5", "4294967291", "4294967290"}) {
    set("SLURM_STEP_ID", step);
    EXPECT_EQ(announced_ranks(), 1) << step;
    set("SLURM_STEP_NUM_TASKS", "16");
    EXPECT_EQ(announced_ranks(), 1) << step;
    EXPECT_FALSE(launched_by_mpi()) << step;
    EXPECT_TRUE(is_announced_first()) << step;
    unsetenv("SLURM_STEP_NUM_TASKS");
  }
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NUM_TASKS", "1");
  EXPECT_FALSE(launched_by_mpi()) << "srun -n 1";
  set("SLURM_STEP_NUM_TASKS", "16");
  EXPECT_EQ(announced_ranks(), 16);
}

TEST_F(Launcher, OtherLaunchers) {
  for (const auto& [rank, size] : std::map<const char*, const char*>{{"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
                                                                     {"PALS_RANKID", "PALS_LOCAL_SIZE"},
                                                                     {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"}}) {
    set(rank, "2");
    set(size, "4");
    EXPECT_EQ(announced_ranks(), 4) << size;
    EXPECT_TRUE(launched_by_mpi()) << size;
    EXPECT_FALSE(is_announced_first()) << rank;
    set(size, "1");
    EXPECT_FALSE(launched_by_mpi()) << size;
    unsetenv(rank);
    unsetenv(size);
  }
  set("RANK", "1");
  set("WORLD_SIZE", "4");
  EXPECT_EQ(announced_ranks(), 1) << "somebody's own variables";
  EXPECT_TRUE(is_announced_first());
  set("TORCHELASTIC_RUN_ID", "none");
  EXPECT_EQ(announced_ranks(), 4);
  EXPECT_FALSE(is_announced_first());
}

TEST_F(Launcher, ATaskWithoutANumberOfTasksKnowsThoseBeforeIt) {
  set("PMIX_RANK", "2");
  EXPECT_EQ(announced_ranks(), 3);
  EXPECT_TRUE(launched_by_mpi());
}

TEST_F(Launcher, SrunWithoutPmixIsKnownBeforeMpiStarts) {
  EXPECT_FALSE(is_srun_without_pmi());
  set("SLURM_PROCID", "1");
  set("SLURM_STEP_NUM_TASKS", "2");
  EXPECT_TRUE(is_srun_without_pmi());
  set("PMIX_RANK", "1");
  EXPECT_FALSE(is_srun_without_pmi()) << "srun --mpi=pmix";
  unsetenv("PMIX_RANK");
  set("PMI_RANK", "1");
  set("PMI_SIZE", "2");
  EXPECT_FALSE(is_srun_without_pmi()) << "srun --mpi=pmi2";
  unsetenv("PMI_RANK");
  unsetenv("PMI_SIZE");
  set("OMPI_COMM_WORLD_RANK", "1");
  set("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_FALSE(is_srun_without_pmi()) << "mpirun";
}

TEST_F(Launcher, AnErrorNamesTaskVariableBothCountsAndTheCure) {
  set("SLURM_PROCID", "2");
  set("SLURM_STEP_NUM_TASKS", "16");
  const std::string message = LaunchError().what();
  EXPECT_EQ(message.rfind("task 2 on host ", 0), 0u) << message;
  EXPECT_NE(message.find(": the launcher announces 16 tasks (SLURM_STEP_NUM_TASKS), but MPI sees only this one: start "
                         "them with srun --mpi=pmix, or with the mpirun of the MPI library that meshtrain was "
                         "built with (Open MPI "),
            std::string::npos)
      << message;
}

TEST_F(Launcher, MpirunInsideASlurmAllocationSpeaksForItself) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_NUM_TASKS", "2");
  set("OMPI_COMM_WORLD_SIZE", "8");
  EXPECT_EQ(announced_ranks(), 8);
}

TEST_F(Launcher, PmixAloneLeavesTheNumberToMpi) {
  set("PMIX_RANK", "0");
  EXPECT_EQ(announced_ranks(), 1);
  EXPECT_TRUE(launched_by_mpi());
}

TEST_F(Launcher, NonsenseIsOneRank) {
  set("PMI_SIZE", "many");
  EXPECT_EQ(announced_ranks(), 1);
}

}  // namespace
}  // namespace meshtrain

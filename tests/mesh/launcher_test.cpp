#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>

#include "mesh/backends/mpi/mpi.h"

namespace meshtrain {
namespace {

/// The environment variables that launchers set, replaced during a test.
class Launcher : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK",
                             "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MPI_LOCALNRANKS", "PMIX_RANK",
                             "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
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

TEST_F(Launcher, SlurmBatchScriptIsOneProcess) {
  set("SLURM_PROCID", "0");
  set("SLURM_NTASKS", "16");
  EXPECT_EQ(announced_ranks(), 1);
  EXPECT_FALSE(launched_by_mpi());
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

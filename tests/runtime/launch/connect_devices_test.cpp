#include "runtime/launch/connect_devices.h"

#include <gtest/gtest.h>

#include "mesh/cuda/plugin.h"
#include "mesh/error.h"

namespace meshtrain {
namespace {

const MeshLayout kAlone({{"dp", 1}, {"cp", 1}, {"tp", 1}});

TEST(ConnectDevices, WithoutADriverAutoIsTheCpuAndTheSameWorld) {
  if (is_cuda_driver_there()) GTEST_SKIP() << "this machine has a driver";
  const Group world;
  for (const char* backend : {"auto", "mpi"}) {
    const Computing computing = connect_devices({"auto", backend}, world);
    EXPECT_TRUE(computing.device.is_cpu());
    EXPECT_EQ(computing.world.backend(), world.backend());
    EXPECT_EQ(computing.fallback, "") << "nobody expects a GPU here";
  }
  EXPECT_THROW(connect_devices({"cuda"}, world), InputError);
  EXPECT_THROW(connect_devices({"auto", "nccl"}, world), InputError) << "asks for GPUs as much";
}

TEST(ConnectDevices, WhatCpusAloneDoStaysThere) {
  Recipe recipe;
  EXPECT_EQ(device_request(recipe, kAlone).cpu_only, "");
  recipe.train.offload_activations = true;
  EXPECT_EQ(device_request(recipe, kAlone).cpu_only, "train.offload_activations: true");
  EXPECT_TRUE(connect_devices(device_request(recipe, kAlone), Group()).device.is_cpu());
  recipe = {};
  recipe.parallel.fsdp.offload.to = "disk";
  EXPECT_NE(device_request(recipe, kAlone).cpu_only, "");
}

}  // namespace
}  // namespace meshtrain

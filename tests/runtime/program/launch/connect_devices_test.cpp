#include "runtime/program/launch/connect_devices.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "mesh/device/cuda/plugin.h"

namespace meshtrain {
namespace {

using Transport = DeviceRequest::Transport;

const MeshLayout kAlone({{"dp", 1}, {"cp", 1}, {"tp", 1}});

TEST(ConnectDevices, WithoutADriverAutoIsTheCpuAndTheSameWorld) {
  if (is_cuda_driver_there()) GTEST_SKIP() << "this machine has a driver";
  const Group world;
  for (const Transport transport : {Transport::Auto, Transport::Mpi}) {
    const DeviceContext device_context = connect_devices({.transport = transport}, world);
    EXPECT_TRUE(device_context.device.is_cpu());
    EXPECT_EQ(device_context.world.backend(), world.backend());
    EXPECT_EQ(device_context.fallback, "") << "nobody expects a GPU here";
  }
  EXPECT_THROW(connect_devices({.kind = DeviceRequest::Kind::Cuda}, world), InputError);
  EXPECT_THROW(connect_devices({.transport = Transport::Nccl}, world), InputError) << "asks for GPUs as much";
}

}  // namespace
}  // namespace meshtrain

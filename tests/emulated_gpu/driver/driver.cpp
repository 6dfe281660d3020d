// Pretends that the machine of the emulated GPU has a driver. Replaces is_cuda_driver_there()
// (mesh/device/cuda/plugin.h), which looks for a driver's files, by the linker's --wrap.
extern "C" bool __wrap__ZN9meshtrain20is_cuda_driver_thereEv() {
  return true;
}

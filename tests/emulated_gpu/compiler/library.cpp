// Replaces CUDA's run-time compiler and linker, which cuDNN opens by name: nothing in it is ever called.
extern "C" int meshtrain_emulated_runtime_compiler() {
  return 0;
}

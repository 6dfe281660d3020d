#pragma once

#include <string>

namespace meshtrain::null_gpu {

/// Writes a line, "what detail", to this process's file in the folder that MESHTRAIN_NULL_GPU_LOG names.
void note(const char* what, const std::string& detail);

/// Returns true when note() writes.
bool is_noting();

/// Notes a call that CUDA would not accept, and prints it to stderr.
void refuse(const std::string& why);

}  // namespace meshtrain::null_gpu

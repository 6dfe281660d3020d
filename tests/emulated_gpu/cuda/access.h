#pragma once

namespace meshtrain::emulated {

/// Returns the protection key of the device's memory; -1 when the CPU has none.
int protection_key();

/// Removes access to the device's memory. Call on a new thread, which inherits the access of the thread that started
/// it.
void deny_access();

}  // namespace meshtrain::emulated

#pragma once

// The right of a thread to read and write the device's memory. Protection keys enforce it, on CPUs that have them.
namespace meshtrain::emulated {

/// Returns the protection key of the device's memory; -1 when the CPU has none.
int protection_key();

/// Gives this thread access to the device's memory. A thread of the device calls this before it computes anything, so
/// that the threads which OpenMP starts for it inherit the access.
void allow_access();

/// Removes this thread's access, which it inherits when a thread of the device starts it.
void deny_access();

}  // namespace meshtrain::emulated

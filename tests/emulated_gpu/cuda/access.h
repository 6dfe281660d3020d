#pragma once

namespace meshtrain::emulated {

/// Of the device's memory, -1 where the CPU has none.
int protection_key();

/// For a new thread: it begins with what the thread that started it may touch.
void deny_access();

}  // namespace meshtrain::emulated

#pragma once

#include <string>

namespace meshtrain::testing {

/// Makes calls of the C library fail, as disks and file systems do, in a program that is linked to this library or
/// starts with it in LD_PRELOAD. MESHTRAIN_FAULTS, read when it is loaded, or inject_faults() say which:
///
///   CALL:PART:ERROR[:SKIP[:COUNT]] separated by ";"     "fsync:step-00000004:ENODATA",
///   "flock:/lock:ENOLCK;read::EIO:3:1"
///
/// CALL is open, opendir, read, pread, write, pwrite, fsync, fdatasync, sync_file_range, ftruncate, close, rename or
/// flock (fcntl's locks included). It fails for files whose path contains PART (for rename: either path), after SKIP
/// such calls (0), COUNT times (always). ERROR is a name of <errno.h>. Calls of any thread count.
void inject_faults(const std::string& faults);

}  // namespace meshtrain::testing

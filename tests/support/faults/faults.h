#pragma once

#include <string>

namespace meshtrain::testing {

/// Makes calls of the C library fail as disks and file systems do, in a program that links this library or starts with
/// it in LD_PRELOAD. MESHTRAIN_FAULTS, read when the library is loaded, or inject_faults() selects the calls:
///
///   CALL:PART:ERROR[:SKIP[:COUNT]] separated by ";"     "fsync:step-00000004:ENODATA",
///   "flock:/lock:ENOLCK;read::EIO:3:1", "rename:step-*.tmp:+ESTALE"
///
/// CALL is open, opendir, stat (lstat included), mkdir, read, pread, write, pwrite, fsync, fdatasync, sync_file_range,
/// ftruncate, close, rename, unlink or flock (fcntl's locks included). It fails for files whose path contains PART, in
/// which "*" matches any text, or ends with PART for PART$ (for rename: both paths, with a line break between them),
/// after SKIP such calls (0), COUNT times (always). ERROR is a name of <errno.h>; "+" before it makes the call first,
/// like a server whose answer was lost. KILL ends the process as SIGKILL does, before the call or with "+" after it.
/// "delay=3000" makes the call 3,000 ms longer. Calls of all threads count.
///
/// MESHTRAIN_FAULTS_LOG, or log_calls(), names a file that gets a line for each of these calls: "fsync /path/of/file",
/// "rename /from /to". Only calls for regular files and folders are logged.
void inject_faults(const std::string& faults);
void log_calls(const std::string& file);

}  // namespace meshtrain::testing

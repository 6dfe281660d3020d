#pragma once

#include <string>

namespace meshtrain::testing {

/// Makes calls of the C library fail, as disks and file systems do, in a program that is linked to this library or
/// starts with it in LD_PRELOAD. MESHTRAIN_FAULTS, read when it is loaded, or inject_faults() say which:
///
///   CALL:PART:ERROR[:SKIP[:COUNT]] separated by ";"     "fsync:step-00000004:ENODATA",
///   "flock:/lock:ENOLCK;read::EIO:3:1", "rename:step-*.tmp:+ESTALE"
///
/// CALL is open, opendir, stat (lstat included), mkdir, read, pread, write, pwrite, fsync, fdatasync, sync_file_range,
/// ftruncate, close, rename, unlink or flock (fcntl's locks included). It fails for files whose path contains PART, in
/// which "*" is any text, or ends with it when it is PART$ (for rename: both paths, with a line break in between),
/// after SKIP such calls (0), COUNT times (always). ERROR is a name of <errno.h>, with "+" before it when the call is
/// made nevertheless, as by a server whose answer was lost; or KILL, which ends the process as SIGKILL does, before the
/// call or with "+" after it; or "delay=3000", which makes the call last 3,000 ms longer. Calls of any thread count.
///
/// MESHTRAIN_FAULTS_LOG, or log_calls(), names a file that gets a line for each of these calls: "fsync /path/of/file",
/// "rename /from /to". Those of other files than regular ones and folders are left out.
void inject_faults(const std::string& faults);
void log_calls(const std::string& file);

}  // namespace meshtrain::testing

// stdin, stdout and stderr of this process: any may be closed, full, or a pipe without a reader.
#pragma once

namespace speedrun {

// Opens /dev/null on each of the descriptors 0, 1 and 2 that is closed. Otherwise the first opened files would get these
// descriptors, and printed text would be written into them. Call it before any file is opened.
void open_standard_streams();

// Flushes stdout. Returns false if text was lost, except to a pipe without a reader.
bool flush_standard_output();

}  // namespace speedrun

// stdin, stdout and stderr of this process, which may be closed, full, or a pipe without a reader.
#pragma once

namespace speedrun {

// Opens /dev/null on the descriptors 0, 1 and 2 that are closed. Otherwise the first files opened would have these numbers, and
// text printed later would be written into them. Call it before any file is opened.
void open_standard_streams();

// Flushes stdout. False if text was lost, except to a pipe without a reader.
bool flush_standard_output();

}  // namespace speedrun

// Small files as whole texts, plain or compressed by gzip.
#pragma once

#include <string>

#include "data/text_file.h"

namespace speedrun {

// Throws an error (exit code 1) that names the file if it cannot be written.
void write_text_file(const std::string& path, const std::string& text);

// Compresses deterministically for equal text and zlib version: no time, no file name.
std::string gzip(const std::string& text);
// Throws a data error that names `origin` unless the input is one complete gzip stream of at most 256 MiB of text.
std::string gunzip(const std::string& bytes, const std::string& origin);

}  // namespace speedrun

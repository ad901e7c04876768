// Texts compressed by gzip.
#pragma once

#include <string>

namespace speedrun {

// Compresses deterministically for equal text and zlib version: no time, no file name.
std::string gzip(const std::string& text);
// Throws a data error that names `origin` unless the input is one complete gzip stream of at most 256 MiB of text.
std::string gunzip(const std::string& bytes, const std::string& origin);

}  // namespace speedrun

// Incremental SHA-256, by OpenSSL's libcrypto.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

struct evp_md_ctx_st;

namespace speedrun {

class Sha256 {
  public:
    Sha256();  // throws an internal error if libcrypto lacks SHA-256
    void update(const void* data, size_t bytes);
    // Returns the digest as 64 lower-case hexadecimal digits. Must be the last call.
    std::string hex();

  private:
    std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

}  // namespace speedrun

// SHA-256 of data that arrives in pieces, by OpenSSL's libcrypto.
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
    // Returns the digest as 64 hexadecimal digits. No update() may follow.
    std::string hex();

  private:
    std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

}  // namespace speedrun

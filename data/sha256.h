// SHA-256 of data that comes in pieces, by OpenSSL's libcrypto.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

struct evp_md_ctx_st;

namespace speedrun {

class Sha256 {
  public:
    Sha256();  // throws an internal error if libcrypto offers no SHA-256
    void update(const void* data, size_t bytes);
    // 64 hexadecimal digits of all that came; nothing may come afterwards.
    std::string hex();

  private:
    std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

}  // namespace speedrun

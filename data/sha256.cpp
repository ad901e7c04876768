#include "data/sha256.h"

#include <openssl/evp.h>

#include "kernels/device/error.h"

namespace speedrun {

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) {
        throw_internal("SHA-256 is not available from libcrypto");
    }
}

void Sha256::update(const void* data, size_t bytes) {
    if (EVP_DigestUpdate(context_.get(), data, bytes) != 1) throw_internal("SHA-256 failed");
}

std::string Sha256::hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int digest_bytes = 0;
    if (EVP_DigestFinal_ex(context_.get(), digest, &digest_bytes) != 1) throw_internal("SHA-256 failed");
    std::string text;
    for (unsigned int i = 0; i < digest_bytes; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
}

}  // namespace speedrun

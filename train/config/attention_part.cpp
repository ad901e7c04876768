#include "train/config/attention_part.h"

#include "kernels/device/error.h"
#include "train/config/model_parts.h"

namespace speedrun {

int64_t AttentionScope::head_pairs() const {
    return model_dim / attention.heads / 2;
}

void AttentionScope::check_columns(const std::string& field, int64_t columns) const {
    if (columns > model_dim)
        throw_usage("{}.{} {} exceeds model.model_dim {}", key, field, columns, model_dim);
}

}  // namespace speedrun

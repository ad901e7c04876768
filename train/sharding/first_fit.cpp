#include "train/sharding/first_fit.h"

#include <algorithm>
#include <numeric>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

int64_t padded(int64_t bytes, int64_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

bool overlap(const Lifetime& a, const Lifetime& b) {
    return a.first <= a.last && b.first <= b.last && a.first <= b.last && b.first <= a.last;
}

bool meet(const BufferRequest& a, const BufferRequest& b) {
    const Lifetime of_a{a.first, a.last}, of_b{b.first, b.last};
    return overlap(of_a, of_b) || overlap(of_a, b.again) || overlap(a.again, of_b) ||
           overlap(a.again, b.again);
}

BufferAssignment place(const std::vector<BufferRequest>& requests, const std::vector<size_t>& order,
                       int64_t alignment) {
    BufferAssignment assignment{.offset = std::vector<int64_t>(requests.size())};
    std::vector<size_t> placed;  // sorted by offset
    placed.reserve(requests.size());
    for (const size_t i : order) {
        const BufferRequest& request = requests[i];
        if (request.bytes == 0) continue;
        const int64_t bytes = padded(request.bytes, alignment);
        int64_t offset = 0;
        for (const size_t j : placed) {
            const int64_t begin = assignment.offset[j], end = begin + padded(requests[j].bytes, alignment);
            if (begin - offset >= bytes) break;
            if (end > offset && meet(requests[j], request)) offset = end;
        }
        assignment.offset[i] = offset;
        assignment.bytes = std::max(assignment.bytes, offset + request.bytes);
        placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                       [&](int64_t at, size_t j) { return at < assignment.offset[j]; }),
                      i);
    }
    return assignment;
}

}  // namespace

BufferAssignment first_fit(const std::vector<BufferRequest>& requests, int64_t alignment) {
    for (const BufferRequest& request : requests) {
        if (request.bytes < 0 || request.last < request.first)
            throw_internal("{} bytes from step {} to {}", request.bytes, request.first, request.last);
    }
    std::vector<size_t> by_size(requests.size());
    std::iota(by_size.begin(), by_size.end(), size_t{0});
    std::vector<size_t> by_begin = by_size;
    std::stable_sort(by_size.begin(), by_size.end(),
                     [&](size_t a, size_t b) { return requests[a].bytes > requests[b].bytes; });
    std::stable_sort(by_begin.begin(), by_begin.end(),
                     [&](size_t a, size_t b) { return requests[a].first < requests[b].first; });
    const BufferAssignment largest_first = place(requests, by_size, alignment);
    BufferAssignment assignment = place(requests, by_begin, alignment);
    return largest_first.bytes < assignment.bytes ? largest_first : assignment;
}

}  // namespace speedrun

// build: in watch_tests
#include "tests/simt/traffic.h"

#include <algorithm>
#include <array>

namespace speedrun::simt {

namespace {

constexpr uintptr_t kSectorBytes = 32, kLineBytes = 128, kBankBytes = 4, kBanks = 32;

int64_t count_distinct(std::vector<uintptr_t>& values) {
    std::sort(values.begin(), values.end());
    return std::unique(values.begin(), values.end()) - values.begin();
}

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// Bytes that lanes request; equal addresses count once. Accesses are aligned to their size, so they do not
// overlap.
int64_t distinct_bytes(const uintptr_t* address, int count, int bytes) {
    std::vector<uintptr_t> all(address, address + count);
    return count_distinct(all) * bytes;
}

// Lanes that share a word are served together; otherwise the bank with the most words decides.
int64_t wavefronts(const uintptr_t* address, int count, int bytes) {
    if (std::all_of(address, address + count, [&](uintptr_t a) { return a == address[0]; })) return 1;
    const int lanes = bytes <= 4 ? kWarpSize : kWarpSize * 4 / bytes;
    int64_t total = 0;
    for (int first = 0; first < count; first += lanes) {
        std::vector<uintptr_t> words;
        for (int lane = first; lane < std::min(first + lanes, count); ++lane) {
            for (uintptr_t at = address[lane]; at < address[lane] + static_cast<uintptr_t>(bytes);
                 at += kBankBytes)
                words.push_back(at / kBankBytes);
        }
        words.resize(static_cast<size_t>(count_distinct(words)));
        std::array<int, kBanks> load{};
        for (const uintptr_t word : words) ++load[word % kBanks];
        total += *std::max_element(load.begin(), load.end());
    }
    return total;
}

}  // namespace

void TrafficWatch::begin_launch(const Launch& launch) {
    traffic_ = &by_kernel_[kernel_name(launch)];
    ++traffic_->launches;
}

void TrafficWatch::begin_block(unsigned num_threads, int64_t /*shared_bytes*/) {
    num_threads_ = num_threads;
    instructions_.clear();
}

void TrafficWatch::access(const Access& access) {
    if (access.kind == Access::Kind::copy_end || access.kind == Access::Kind::product) return;
    if (access.kind == Access::Kind::bulk_read) {  // a row of the box: one request
        const uintptr_t first = access.address / kSectorBytes,
                        last = (access.address + static_cast<uintptr_t>(access.bytes) - 1) / kSectorBytes;
        for (uintptr_t sector = first; sector <= last; ++sector) sectors_read_.insert(sector);
        traffic_->loads.units += static_cast<int64_t>(last - first + 1);
        traffic_->loads.least += ceil_div(access.bytes, kSectorBytes);
        return;
    }
    const bool store = access.kind != Access::Kind::read;
    // A copy of a word reads and writes at the same location: one instruction each.
    const uintptr_t place =
        reinterpret_cast<uintptr_t>(access.instruction) * 4 + (store ? 2 : 0) + access.shared;
    Instruction& instruction = instructions_[place];
    instruction.count.resize(num_threads_);
    const uint64_t number = instruction.count[access.thread]++, warp = access.thread / kWarpSize;
    const uint64_t key = number << 6 | warp;
    Request& request =
        instruction.open.try_emplace(key, Request{access.shared, store, access.bytes, 0, {}}).first->second;
    request.address[request.count++] = access.address;
    if (request.count == kWarpSize) {
        close(request);
        instruction.open.erase(key);
    }
}

// The swizzle spreads each row over all banks.
void TrafficWatch::bulk_begin(unsigned /*thread*/, int /*key*/, uintptr_t /*to*/, int bytes) {
    const int64_t count = bytes / static_cast<int64_t>(kBanks * kBankBytes);
    traffic_->shared_stores.units += count;
    traffic_->shared_stores.least += count;
}

void TrafficWatch::close(const Request& request) {
    const int64_t bytes = distinct_bytes(request.address, request.count, request.bytes);
    if (request.shared) {
        Moved& moved = request.store ? traffic_->shared_stores : traffic_->shared_loads;
        moved.units += wavefronts(request.address, request.count, request.bytes);
        moved.least += ceil_div(bytes, kBanks * kBankBytes);
        return;
    }
    const auto units = [&](uintptr_t unit) {
        std::vector<uintptr_t> all;
        for (int i = 0; i < request.count; ++i) all.push_back(request.address[i] / unit);
        all.resize(static_cast<size_t>(count_distinct(all)));
        return all;
    };
    const std::vector<uintptr_t> sectors = units(kSectorBytes);
    auto& seen = request.store ? sectors_written_ : sectors_read_;
    seen.insert(sectors.begin(), sectors.end());
    Moved& moved = request.store ? traffic_->stores : traffic_->loads;
    moved.units += static_cast<int64_t>(sectors.size());
    moved.least += ceil_div(bytes, kSectorBytes);
    if (!request.store) return;
    traffic_->stored_lines.units += static_cast<int64_t>(units(kLineBytes).size());
    traffic_->stored_lines.least += ceil_div(bytes, kLineBytes);
}

void TrafficWatch::end_block() {
    for (const auto& [place, instruction] : instructions_) {
        for (const auto& [key, request] : instruction.open) close(request);
    }
    instructions_.clear();
}

void TrafficWatch::end_launch() {
    traffic_->distinct_bytes +=
        static_cast<int64_t>((sectors_read_.size() + sectors_written_.size()) * kSectorBytes);
    sectors_read_.clear();
    sectors_written_.clear();
}

}  // namespace speedrun::simt

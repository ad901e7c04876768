// Warpgroup matmuls (wgmma). They read shared memory when they start, and again when they are waited for; it
// must not change in between. Their sums are NaN until then. The matrix descriptor, the 128-byte swizzle and
// the fragments follow the PTX ISA ("Matrix Descriptor Format", "Strides", "Shared Memory Matrix Layout",
// "Register Fragments").
// build: in speedrun_simt_executor
#include "tests/simt/warpgroup.h"

#include <fmt/format.h>

#include <cmath>

#include "tests/simt/execution.h"

namespace speedrun::simt {

namespace {

constexpr int kWarps = 4, kRows = 64;
constexpr uint32_t kRowBytes = 128, kChunkBytes = 16;

// Offset of byte k of a row of an operand: rows of 128 bytes of k or, transposed, rows of one k (here its index) with 64 rows of the
// operand each.
uint32_t offset_of(uint64_t matrix, bool transposed, int row, int k) {
    const auto field = [&](int from) { return static_cast<uint32_t>(matrix >> from & 0x3fffu) << 4; };
    const uint32_t start = field(0), leading = field(16), stride = field(32);
    const auto r = static_cast<uint32_t>(row), c = static_cast<uint32_t>(k);
    const uint32_t linear = transposed
                                ? start + r / 64 * leading + r % 64 * 2 + c / 8 * stride + c % 8 * kRowBytes
                                : start + r / 8 * stride + r % 8 * kRowBytes + c;
    return linear ^ (linear / kRowBytes % 8 * kChunkBytes);
}

std::vector<float> values_of(const std::vector<uint16_t>& bits, bool e4m3) {
    std::vector<float> values;
    values.reserve(bits.size());
    for (const uint16_t x : bits) {
        E4m3 number;
        number.bits = static_cast<uint8_t>(x);
        values.push_back(e4m3 ? float(number) : std::bit_cast<float>(static_cast<uint32_t>(x) << 16));
    }
    return values;
}

bool alike(const Product& a, const Product& b) {
    return a.tiles == b.tiles && a.a_shared == b.a_shared && a.form == b.form && a.add == b.add &&
           a.a_matrix == b.a_matrix && a.b_matrix == b.b_matrix;
}

}  // namespace

void Executor::arrived(const void* shared, size_t bytes) {
    const auto at = static_cast<size_t>(static_cast<const std::byte*>(shared) - running_->position.shared);
    for (size_t chunk = at / kChunkBytes; chunk * kChunkBytes < at + bytes; ++chunk)
        arrivals_[chunk] = {running_, running_->products.proxy_fences};
}

// Each warp reads the whole operand; its lanes share the chunks.
void Executor::note_operand(uint64_t matrix, bool transposed, int rows, const Where& where) {
    const Position& p = running_->position;
    for (int i = lane(); i < rows * 2; i += kWarpSize) {
        constexpr int kTransposedRows = 16;
        const uint32_t at = transposed ? offset_of(matrix, true, i / kTransposedRows * 8, i % kTransposedRows)
                                       : offset_of(matrix, false, i / 2, i % 2 * int{kChunkBytes});
        if (at + kChunkBytes > static_cast<uint64_t>(p.shared_bytes))
            fail(fmt::format("a product reads {} bytes from {} on, of {} of shared memory", kChunkBytes, at,
                             p.shared_bytes),
                 &where);
        if (filling_[at / kChunkBytes]) fail("a product reads bytes that a bulk copy is writing", &where);
        const Arrival& arrival = arrivals_[at / kChunkBytes];
        if (arrival.thread && arrival.proxy_fences == arrival.thread->products.proxy_fences)
            fail("an unpublished write is read by wgmma (missing fence.proxy.async)", &where);
        note_access(Access::Kind::product, p.shared + at, kChunkBytes, __builtin_return_address(0));
    }
}

void Executor::read_operands(Product& product) {
    const Position& p = running_->position;
    const int depth = product.depth();
    const size_t bytes = product.form.e4m3 ? 1 : 2;
    const auto read = [&](uint64_t matrix, bool transposed, int row, int k) {
        uint16_t bits = 0;
        const int at = transposed ? k : k * static_cast<int>(bytes);
        std::memcpy(&bits, p.shared + offset_of(matrix, transposed, row, at), bytes);
        return bits;
    };
    const int g = lane() / 4, t = lane() % 4, warp = static_cast<int>(p.linear) / kWarpSize % kWarps;
    note_operand(product.b_matrix, product.form.b_transposed, 8 * product.tiles, product.where);
    product.b.clear();
    for (int column = 0; column < 2 * product.tiles; ++column) {
        for (int k = 0; k < depth; ++k)
            product.b.push_back(
                read(product.b_matrix, product.form.b_transposed, column / 2 * 8 + 2 * t + column % 2, k));
    }
    if (!product.a_shared) return;
    note_operand(product.a_matrix, product.form.a_transposed, kRows, product.where);
    product.a.clear();
    for (int half = 0; half < 2; ++half) {
        for (int k = 0; k < depth; ++k)
            product.a.push_back(
                read(product.a_matrix, product.form.a_transposed, 16 * warp + 8 * half + g, k));
    }
}

// All warps of a warpgroup start the same matmuls, in the same order.
void Executor::check_warpgroup(const Product& product) {
    const size_t group = running_->position.linear / (kWarps * kWarpSize);
    if (threads_.size() % (kWarps * kWarpSize) != 0)
        fail("a product of a warpgroup in a block that is not made of warpgroups", &product.where);
    warpgroups_.resize(threads_.size() / (kWarps * kWarpSize));
    std::vector<Product>& started = warpgroups_[group];
    const size_t index = running_->products.count++;
    if (index == started.size()) started.push_back(product);
    if (!alike(started[index], product))
        fail("warps of a warpgroup start different products", &product.where);
}

void Executor::check_products() const {
    for (const Thread& thread : threads_) {
        const size_t group = thread.position.linear / (kWarps * kWarpSize);
        if (group >= warpgroups_.size()) return;
        if (thread.products.count != warpgroups_[group].size())
            fail(fmt::format("thread {} started {} products, others of its warpgroup {}",
                             thread.position.linear, thread.products.count, warpgroups_[group].size()),
                 nullptr);
        if (!thread.products.sums.empty())
            fail(fmt::format("thread {} has not waited for its products", thread.position.linear), nullptr);
    }
}

void Executor::multiply(Product product, const uint32_t* a) {
    struct Registers {
        uint32_t a[4];
    };
    const Registers own = a ? Registers{{a[0], a[1], a[2], a[3]}} : Registers{};
    exchange(
        ~0u, own,
        [&](auto&& of) {
            for (int half = 0; a && half < 2; ++half) {
                for (int k = 0; k < product.depth(); ++k) {
                    const uint32_t pair = of(lane() / 4 * 4 + k % 8 / 2).a[k / 8 * 2 + half];
                    product.a.push_back(static_cast<uint16_t>(k % 2 ? pair >> 16 : pair));
                }
            }
            return 0;
        },
        product.where);
    WarpgroupProducts& products = running_->products;
    if (!products.begun) fail("a product without wgmma.fence since registers could change", &product.where);
    check_warpgroup(product);
    read_operands(product);
    for (int i = 0; i < product.tiles; ++i) note_mma();

    const auto sums = std::find_if(products.sums.begin(), products.sums.end(),
                                   [&](const auto& s) { return s.at == product.sums; });
    const auto count = static_cast<size_t>(4 * product.tiles);
    if (sums != products.sums.end()) {
        ++sums->pending;
    } else {
        products.sums.push_back({product.sums, {product.sums, product.sums + count}, 1});
        std::fill_n(product.sums, count, std::nanf(""));
    }
    if (products.groups.empty()) products.groups.emplace_back();
    products.groups.back().push_back(std::move(product));
}

void Executor::finish_products(int groups_in_flight) {
    WarpgroupProducts& products = running_->products;
    while (static_cast<int>(products.groups.size()) - 1 > groups_in_flight) {
        for (Product& product : products.groups.front()) {
            const std::vector<uint16_t> a = product.a, b = product.b;
            read_operands(product);
            if (a != product.a || b != product.b)
                fail("shared memory changed while a product read it", &product.where);
            const auto sums = std::find_if(products.sums.begin(), products.sums.end(),
                                           [&](const auto& s) { return s.at == product.sums; });
            const std::vector<float> a_values = values_of(a, product.form.e4m3),
                                     b_values = values_of(b, product.form.e4m3);
            const int depth = product.depth();
            for (int n = 0; n < product.tiles; ++n) {
                for (int i = 0; i < 4; ++i) {
                    float& sum = sums->values[static_cast<size_t>(4 * n + i)];
                    if (!product.add) sum = 0.0f;
                    const float* const row = a_values.data() + i / 2 * depth;
                    const float* const column = b_values.data() + (2 * n + i % 2) * depth;
                    for (int k = 0; k < depth; ++k) sum += row[k] * column[k];
                }
            }
            if (--sums->pending == 0) {
                std::copy(sums->values.begin(), sums->values.end(), sums->at);
                products.sums.erase(sums);
            }
        }
        products.groups.pop_front();
    }
}

uint32_t shared_offset(const void* shared) {
    return static_cast<uint32_t>(static_cast<const std::byte*>(shared) - position->shared);
}

void fence_shared_proxy() {
    ++executor().self().products.proxy_fences;
    executor().note_proxy_fence();
}

void warpgroup_begin() {
    executor().self().products.begun = true;
}

void warpgroup_multiply(float* sums, int tiles, const uint32_t* a, uint64_t a_matrix, uint64_t b_matrix,
                        OperandForm form, bool add, Where where) {
    executor().multiply({sums, tiles, a == nullptr, form, add, a_matrix, b_matrix, {}, {}, where}, a);
}

void warpgroup_commit() {
    WarpgroupProducts& products = executor().self().products;
    if (products.groups.empty()) products.groups.emplace_back();
    products.groups.emplace_back();  // opens a new group
}

void warpgroup_wait(int groups_in_flight) {
    executor().self().products.begun = false;
    executor().finish_products(groups_in_flight);
}

}  // namespace speedrun::simt

// Table lookups and their gradients: memory-bound.
#include <fmt/format.h>

#include <random>
#include <set>

#include "data/zipf_tokens.h"
#include "tests/bench/cases.h"

namespace speedrun::bench {

namespace {

// Share of the roofline bound that good kernels reach in all passes over tokens: 6.85 of 7.8 ms.
const std::vector<Published> kPublished = {{"realistic", 0, 0, 6.85 / 7.8}};

// signs: the table has signs instead of positions.
struct Kind {
    bool positions = false, signs = false;
};

// Signs of the tokens, from 8192 rows of signs.
struct Signs {
    std::vector<int32_t> row, bits;

    Signs(const std::vector<int32_t>& ids, int64_t width) {
        constexpr int64_t kRows = 8192;
        for (size_t t = 0; t < ids.size(); ++t)
            row.push_back(t == 0 ? 0 : static_cast<int32_t>((ids[t] ^ ids[t - 1]) % kRows));
        std::minstd_rand random(5);
        for (int64_t i = 0; i < kRows * ((width + 31) / 32); ++i)
            bits.push_back(static_cast<int32_t>(random()));
    }
    op::RowSigns in(CaseMemory& m) const {
        const Tensor rows = m.indices(row), all = m.indices(bits);
        const int64_t words = all.numel() / 8192, read = rows.numel() * words * size_of(DType::i32);
        m.count_read(std::min(read, all.bytes()) - all.bytes());
        return {.bits = all.reshaped({8192, words}), .row = rows};
    }
};

void add_embedding(std::vector<Case>& cases, const ModelShape& s, const Kind& kind) {
    const bool positions = kind.positions, with_signs = kind.signs;
    const int64_t tokens = s.tokens, width = s.width, vocab = s.padded_vocab, length = s.sequence_length;
    const std::vector<int32_t> ids = zipf_tokens({.count = tokens, .vocab_size = s.vocab_size}),
                               position = documents_of(s).position;
    const auto distinct = static_cast<int64_t>(std::set<int32_t>(ids.begin(), ids.end()).size());
    const std::string shape = fmt::format("{}x{} of {} rows", tokens, width, vocab),
                      suffix = with_signs ? "_signs" : "";
    const Signs signs(ids, width);
    const std::string prefix = fmt::format("pointwise.{}.", s.name);
    add_case(cases, {prefix + "embedding_forward" + suffix, shape, 0, kPublished}, [=](CaseMemory& m) {
        m.count_read(distinct * width * size_of(m.compute_dtype()));
        return op::EmbeddingForward{.out = m.output({tokens, width}),
                                    .index = m.indices(ids),
                                    .table = m.uncounted_input(m.compute_dtype(), {vocab, width}),
                                    .position = positions ? m.indices(position) : Tensor{},
                                    .position_table = positions ? m.input({length, width}) : Tensor{},
                                    .signs = with_signs ? signs.in(m) : op::RowSigns{}};
    });
    if (positions) return;
    add_case(cases, {prefix + "embedding_backward" + suffix, shape, 0, kPublished}, [=](CaseMemory& m) {
        const Tensor dtable = m.uncounted_input(DType::f32, {vocab, width});
        m.count_read(distinct * width * size_of(DType::f32));
        m.count_written(distinct * width * size_of(DType::f32));
        m.check(dtable);
        const Tensor index = m.indices(ids), order = m.workspace(DType::i32, {2, tokens});
        m.count_read(order.bytes() - index.bytes());  // read instead of the index
        m.setup([=](Ops& ops, Stream& stream) {
            ops.sort_ids({.order = order, .index = index, .limit = vocab}, stream);
        });
        return op::EmbeddingBackward{.dtable = dtable,
                                     .order = order,
                                     .dout = m.input({tokens, width}),
                                     .signs = with_signs ? signs.in(m) : op::RowSigns{},
                                     .accumulate = true};
    });
    if (with_signs) return;
    add_case(cases, {prefix + "sort_ids", fmt::format("{} below {}", tokens, vocab), 0, kPublished},
             [=](CaseMemory& m) {
                 // Created as f32, with NaN for unwritten elements; an id has the bits of a value near 0.
                 const Tensor written = m.output(DType::f32, {2, tokens});
                 return op::SortIds{.order = Tensor(written.data, DType::i32, {2, tokens}),
                                    .index = m.indices(ids),
                                    .limit = vocab};
             });
}

}  // namespace

std::vector<Case> embedding_cases(const Shapes& shapes) {
    std::vector<Case> cases;
    add_embedding(cases, shapes.recipe, {});
    add_embedding(cases, shapes.recipe, {.signs = true});
    add_embedding(cases, shapes.gpt2, {.positions = true});
    return cases;
}

}  // namespace speedrun::bench

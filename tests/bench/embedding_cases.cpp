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
    cases.push_back({fmt::format("pointwise.{}.embedding_forward{}", s.name, suffix), "embedding_forward",
                     shape, 0, kPublished, [=](CaseMemory& m) -> Enqueue {
                         const Tensor out = m.output({tokens, width}), index = m.indices(ids);
                         const Tensor table = m.uncounted_input(m.real(), {vocab, width});
                         m.count_read(distinct * width * size_of(m.real()));
                         const Tensor place = positions ? m.indices(position) : Tensor{};
                         const Tensor places = positions ? m.input({length, width}) : Tensor{};
                         const op::RowSigns read_with = with_signs ? signs.in(m) : op::RowSigns{};
                         return [=](Ops& ops, Stream& stream) {
                             ops.embedding_forward({.out = out,
                                                    .index = index,
                                                    .table = table,
                                                    .position = place,
                                                    .position_table = places,
                                                    .signs = read_with},
                                                   stream);
                         };
                     }});
    if (positions) return;
    cases.push_back(
        {fmt::format("pointwise.{}.embedding_backward{}", s.name, suffix), "embedding_backward", shape, 0,
         kPublished, [=](CaseMemory& m) -> Enqueue {
             const Tensor dtable = m.uncounted_input(DType::f32, {vocab, width});
             m.count_read(distinct * width * size_of(DType::f32));
             m.count_written(distinct * width * size_of(DType::f32));
             m.check(dtable);
             const Tensor index = m.indices(ids), dout = m.input({tokens, width});
             const Tensor order = m.workspace(DType::i32, {2, tokens});
             m.count_read(order.bytes() - index.bytes());  // read instead of the index
             m.setup([=](Ops& ops, Stream& stream) {
                 ops.sort_ids({.order = order, .index = index, .limit = vocab}, stream);
             });
             const op::RowSigns read_with = with_signs ? signs.in(m) : op::RowSigns{};
             return [=](Ops& ops, Stream& stream) {
                 ops.embedding_backward(
                     {.dtable = dtable, .order = order, .dout = dout, .signs = read_with, .accumulate = true},
                     stream);
             };
         }});
    if (with_signs) return;
    cases.push_back({fmt::format("pointwise.{}.sort_ids", s.name), "sort_ids",
                     fmt::format("{} below {}", tokens, vocab), 0, kPublished, [=](CaseMemory& m) -> Enqueue {
                         // Created as f32, with NaN for unwritten elements; an id has the bits of a value
                         // near 0.
                         const Tensor index = m.indices(ids), written = m.output(DType::f32, {2, tokens});
                         const Tensor order(written.data, DType::i32, {2, tokens});
                         return [=](Ops& ops, Stream& stream) {
                             ops.sort_ids({.order = order, .index = index, .limit = vocab}, stream);
                         };
                     }});
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

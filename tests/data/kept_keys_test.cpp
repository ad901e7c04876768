// Keys visible to a part of a row, compared with a check of every query and key.
#include "data/kept_keys.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace speedrun::kept_keys_test {

TEST(KeptKeysTest, AreThoseThatSomeQuerySees) {
    for (const int size : {1, 2, 3, 4}) {
        for (const int64_t S : {8, 13, 24, 31}) {
            for (const int64_t window : {0, 1, 2, 5, 9, 40}) {
                for (int index = 0; index < size; ++index) {
                    const ContextPart part{.size = size, .index = index};
                    const KeptKeys kept(part, {.sequence_length = S, .window = window});
                    std::vector<bool> own(static_cast<size_t>(S)), seen(static_cast<size_t>(S));
                    for (const int64_t query : part.places(S)) {
                        if (query < 0) continue;
                        own[static_cast<size_t>(query)] = true;
                        for (int64_t key = 0; key <= query; ++key)
                            if (window == 0 || query - key < window) seen[static_cast<size_t>(key)] = true;
                    }
                    std::vector<bool> in_chunks(own.size()), in_ranges(own.size());
                    for (const PlaceRange& chunk : chunks_of(part, S))
                        for (int64_t p = chunk.begin; p < chunk.end; ++p)
                            in_chunks[static_cast<size_t>(p)] = true;
                    for (const PlaceRange& range : kept.ranges())
                        for (int64_t p = range.begin; p < range.end; ++p)
                            in_ranges[static_cast<size_t>(p)] = true;
                    EXPECT_EQ(in_chunks, own);
                    EXPECT_EQ(in_ranges, seen) << size << " " << index << " " << S << " " << window;
                    EXPECT_EQ(kept.count(), std::count(seen.begin(), seen.end(), true));
                }
            }
        }
    }
}

// A kept key has the next index; one that is not kept has the index of the next kept key. Distances within a window are
// preserved.
TEST(KeptKeysTest, IndicesKeepDistances) {
    const ContextPart part{.size = 2, .index = 0};
    const KeptKeys kept(part, {.sequence_length = 16,
                               .window = 3});  // chunks 0 … 3 and 12 … 15; the second also sees 10 and 11
    ASSERT_EQ(kept.ranges().size(), 2u);
    EXPECT_EQ(kept.count(), 10);
    const int64_t indices[] = {0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 5, 6, 7, 8, 9};
    for (int64_t place = 0; place < 16; ++place) EXPECT_EQ(kept.below(place), indices[place]) << place;
    const KeptKeys front({.size = 2, .index = 1},
                         {.sequence_length = 16, .window = 3});  // chunks 4 … 11, one range with 2 and 3
    ASSERT_EQ(front.ranges().size(), 1u);
    EXPECT_EQ(front.below(15), front.count()) << "padding, after all kept keys";
}

// Visible keys of each query and their number, compared with a check of every query and key.
TEST(KeptKeysTest, EachQuerySeesItsKeys) {
    for (const int size : {2, 3, 4}) {
        for (const int64_t S : {8, 13, 24, 31}) {
            for (const int64_t window : {0, 1, 5, 9, 40}) {
                for (int index = 0; index < size; ++index) {
                    const ContextPart part{.size = size, .index = index};
                    const KeptKeys kept(part, {.sequence_length = S, .window = window});
                    std::vector<int64_t> places;  // keys, ascending
                    for (const PlaceRange& range : kept.ranges())
                        for (int64_t p = range.begin; p < range.end; ++p) places.push_back(p);
                    EXPECT_EQ(kept.count(), static_cast<int64_t>(places.size()));
                    int64_t pairs = 0;
                    for (const int64_t query : part.places(S)) {
                        if (query < 0) continue;
                        pairs += kept.seen(query, 0).last - kept.seen(query, 0).first + 1;
                        for (const int64_t first_key : {int64_t{0}, query / 2, query}) {
                            std::vector<int64_t> seen, expected;
                            const KeptKeys::Seen range = kept.seen(query, first_key);
                            for (int64_t i = range.first; i <= range.last; ++i)
                                seen.push_back(places[static_cast<size_t>(i)]);
                            for (const int64_t p : places)
                                if (p <= query && p >= first_key && (window == 0 || query - p < window))
                                    expected.push_back(p);
                            EXPECT_EQ(seen, expected)
                                << size << " " << index << " " << S << " " << window << " " << query;
                        }
                    }
                    EXPECT_EQ(kept.visible_pairs(), pairs);
                }
            }
        }
    }
}

// Keys needed with documents, compared with a check of every query and key.
TEST(KeptKeysTest, NeededAreThoseOfTheDocuments) {
    for (const int size : {2, 3, 4}) {
        for (const int64_t S : {8, 13, 24, 31}) {
            for (const int64_t window : {0, 5, 40}) {
                for (const int64_t document : {1, 3, 7, 50}) {  // tokens per document
                    for (int index = 0; index < size; ++index) {
                        const ContextPart part{.size = size, .index = index};
                        const AttendedRow row{.sequence_length = S, .window = window};
                        std::vector<int32_t> first_keys;
                        for (int64_t chunk = 0; chunk < 2 * size; ++chunk) {
                            const int64_t first = std::min(chunk * part.chunk_length(S), S - 1);
                            first_keys.push_back(static_cast<int32_t>(first / document * document));
                        }
                        std::vector<bool> seen(static_cast<size_t>(S)), needed(seen.size());
                        for (const int64_t query : part.places(S))
                            for (int64_t key = query / document * document; query >= 0 && key <= query; ++key)
                                if (window == 0 || query - key < window)
                                    seen[static_cast<size_t>(key)] = true;
                        for (const PlaceRange& range : needed_keys(part, row, first_keys))
                            for (int64_t p = range.begin; p < range.end; ++p)
                                needed[static_cast<size_t>(p)] = true;
                        EXPECT_EQ(needed, seen)
                            << size << " " << index << " " << S << " " << window << " " << document;
                    }
                }
            }
        }
    }
}

TEST(KeptKeysTest, WithoutLeavesWhatIsNotInTheOther) {
    const std::vector<PlaceRange> rest = without({{0, 4}, {6, 12}, {20, 22}}, {{1, 2}, {3, 8}, {11, 13}});
    ASSERT_EQ(rest.size(), 4u);
    const PlaceRange expected[] = {{0, 1}, {2, 3}, {8, 11}, {20, 22}};
    for (size_t i = 0; i < rest.size(); ++i) {
        EXPECT_EQ(rest[i].begin, expected[i].begin);
        EXPECT_EQ(rest[i].end, expected[i].end);
    }
}

TEST(KeptKeysTest, CommonPlacesAreInBoth) {
    const std::vector<PlaceRange> both = common({{0, 4}, {6, 12}}, {{2, 8}, {11, 20}});
    ASSERT_EQ(both.size(), 3u);
    EXPECT_EQ(both[0].begin, 2);
    EXPECT_EQ(both[0].end, 4);
    EXPECT_EQ(both[1].begin, 6);
    EXPECT_EQ(both[1].end, 8);
    EXPECT_EQ(both[2].begin, 11);
    EXPECT_EQ(both[2].end, 12);
    EXPECT_TRUE(common({{0, 4}}, {{4, 8}}).empty());
}

}  // namespace speedrun::kept_keys_test

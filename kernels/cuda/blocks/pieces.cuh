// Operations over a list of flat tensors in few launches: a table in the kernel's arguments has the tensors, and a block
// finds its own in it.
//
// Legend: Piece: the pointers of one list entry, and `count`, its elements · W elements of a chunk · Body: a functor of
// the operation.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/blocks/reduction.cuh"

namespace speedrun {

// Pieces of a launch.
constexpr int kMaxPieces = 64;
constexpr size_t kMaxArgumentBytes = 4096;  // CUDA limits the arguments of a kernel

template <class Piece>
struct PieceTable {
    Piece pieces[kMaxPieces];
    unsigned ends[kMaxPieces];  // number of blocks of the pieces up to and including this one
    int size;

    // Returns the index of the piece of this block.
    __device__ __forceinline__ int index() const {
        int low = 0, high = size - 1;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (blockIdx.x < ends[middle]) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        return low;
    }
    __device__ __forceinline__ unsigned begin(int piece) const { return piece == 0 ? 0u : ends[piece - 1]; }
};

// Calls body(table, first) for the tables of a list; blocks_of(piece): blocks of a piece; first: index of the table's first
// piece in the list. Pieces without blocks are omitted.
template <class Piece, class BlocksOf, class Body>
void for_tables(const std::vector<Piece>& pieces, const BlocksOf& blocks_of, const Body& body) {
    PieceTable<Piece> table{};
    for (const Piece& piece : pieces) {
        const int64_t before = table.size == 0 ? 0 : table.ends[table.size - 1], blocks = blocks_of(piece);
        if (blocks == 0) continue;
        if (before + blocks > 0x7fffffff)
            throw_internal("a launch of {} blocks is too large", before + blocks);
        table.pieces[table.size] = piece;
        table.ends[table.size++] = static_cast<unsigned>(before + blocks);
        if (table.size < kMaxPieces) continue;
        body(table);
        table.size = 0;
    }
    if (table.size > 0) body(table);
}

// Calls body(piece, col, chunk) for every chunk of every piece.
template <int W, class Body>
__global__ void __launch_bounds__(sizes::kMapThreads)
    map_pieces_kernel(const __grid_constant__ PieceTable<typename Body::Piece> table, Body body) {
    wait_for_prior_kernels();
    const int index = table.index();
    const typename Body::Piece& piece = table.pieces[index];
    const int64_t item = int64_t{blockIdx.x - table.begin(index)} * sizes::kMapThreads + threadIdx.x;
    const int64_t col = item * W, left = piece.count - col;
    if (left <= 0) return;
    body(piece, col, Chunk<W>{left < W ? static_cast<int>(left) : W});
}

template <int W, class Body>
void map_pieces(const std::vector<typename Body::Piece>& pieces, Body body, LaunchSite site) {
    using Piece = typename Body::Piece;
    static_assert(sizeof(PieceTable<Piece>) + sizeof(Body) <= kMaxArgumentBytes);
    const auto blocks = [](const Piece& piece) -> int64_t {
        return grid_of(piece.count, int64_t{sizes::kMapThreads} * W);
    };
    for_tables(pieces, blocks, [&](const PieceTable<Piece>& table) {
        launch(map_pieces_kernel<W, Body>, table.ends[table.size - 1], sizes::kMapThreads, 0, site, table,
               body);
    });
}

}  // namespace speedrun

#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/tensor_box.h"

namespace {

// Tensor names may be piece names of a checkpoint: a piece must be within the shape, or the name is not a piece.
void check_pieces(const std::vector<speedrun::NamedTensor>& tensors, const std::vector<int64_t>& shape) {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    std::vector<speedrun::Box> boxes;
    for (const speedrun::NamedTensor& tensor : tensors) {
        const speedrun::PieceName name = speedrun::parse_piece_name(tensor.name);
        const auto box = speedrun::box_of(name, shape);
        if (!box) continue;
        if (box->count() < 0 || (box->count() > 0 && (box->begin < 0 || box->end() > numel))) std::abort();
        if (box->count() > 0 &&
            speedrun::box_of(speedrun::parse_piece_name(speedrun::piece_name("a", shape, *box)), shape)
                    ->count() != box->count())
            std::abort();
        boxes.push_back(*box);
    }
    if (speedrun::coverage_of(boxes).reached > numel) std::abort();
    for (const speedrun::Box& box : boxes) speedrun::overlaps_of(box, boxes.front());
}

}  // namespace

void speedrun::fuzz::parse(std::string_view input) {
    const MemoryFile file(input);
    const std::vector<NamedTensor> tensors = read_safetensors(file.path());
    check_pieces(tensors, {64, 48});
    for (const NamedTensor& tensor : tensors) check_pieces(tensors, tensor.shape);
}

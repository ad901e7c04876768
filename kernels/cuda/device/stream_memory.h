// Scratch memory of operations: one buffer per stream, which grows for new shapes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/device/gpu_interop.h"
#include "kernels/device/device.h"

namespace speedrun {

class StreamMemory {
  public:
    // owner: name of the owner in the memory table ("operations").
    StreamMemory(Device& device, std::string owner) : device_(device), owner_(std::move(owner)) {}

    // Returns at least `bytes`, for one operation at a time. Growing waits for the stream. Memory that a
    // captured graph uses is kept for the life of this object.
    Buffer& at(Stream& stream, int64_t bytes) {
        Piece& piece = pieces_[&stream];
        if (piece.buffer.bytes() < bytes) {
            if (piece.captured) {
                kept_.push_back(std::move(piece.buffer));
                piece.captured = false;
            } else {
                stream.synchronize();
                piece.buffer = Buffer();  // freed first, so that both need not fit
            }
            piece.buffer = Buffer(device_, owner_ + " on " + stream.name(), MemoryCategory::workspace, bytes);
        }
        if (is_captured(stream)) piece.captured = true;
        return piece.buffer;
    }

  private:
    struct Piece {
        Buffer buffer;
        bool captured = false;
    };

    Device& device_;
    const std::string owner_;
    std::map<Stream*, Piece> pieces_;
    std::vector<Buffer> kept_;
};

}  // namespace speedrun

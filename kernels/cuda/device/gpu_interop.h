// GPU streams for communicators. Declared in every build; without CUDA no stream is a GPU stream.
#pragma once

#include <functional>
#include <string>

#include "kernels/device/device.h"

namespace speedrun {

// Runs `work` on a host thread in the order of the stream, as CudaStream::submit. Returns false and does
// nothing if the stream is not a GPU stream.
bool submit_to_gpu_stream(Stream& stream, const char* label, std::function<void()> work);

// The stream's cudaStream_t. Throws if it is not a GPU stream.
void* native_gpu_stream(Stream& stream);

// True if the stream is being captured into a graph.
bool is_captured(const Stream& stream);

// PCI address of the GPU ("00000000:1b:00"), unique on its host, whatever its index in this process; empty:
// no GPU.
std::string gpu_identity(const Device& device);
// Address of the GPU with this index in this process. The GPU must exist.
std::string gpu_identity(int gpu);

// Makes the GPU current for later CUDA calls of this thread.
void use_gpu(const Device& device);

// Frame one span of a timeline that uses event pairs.
void begin_gpu_span(Stream& stream, const char* label);
void end_gpu_span(Stream& stream);

}  // namespace speedrun

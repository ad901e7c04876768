// A GPU's streams as communicators see them. Declared in every build; without CUDA no stream is a GPU's.
#pragma once

#include <functional>
#include <string>

#include "kernels/device/device.h"

namespace speedrun {

// Runs `work` on a host thread in the order of the stream, as CudaStream::submit. False, and nothing is done,
// where the stream is not a GPU's.
bool submit_to_gpu_stream(Stream& stream, const char* label, std::function<void()> work);

// The stream's cudaStream_t; throws where it is not a GPU's.
void* native_gpu_stream(Stream& stream);

// Does its work go to a graph?
bool is_captured(const Stream& stream);

// Which of all GPUs of its host this is, whatever number it goes by in this process ("00000000:1b:00");
// empty: none.
std::string gpu_identity(const Device& device);
// Identity of the GPU with this number in this process. The GPU must exist.
std::string gpu_identity(int gpu);

// CUDA calls of this thread are for this GPU from here on.
void use_gpu(const Device& device);

// What is enqueued between the two is one span of a timeline that is made of event pairs.
void begin_gpu_span(Stream& stream, const char* label);
void end_gpu_span(Stream& stream);

}  // namespace speedrun

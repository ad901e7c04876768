# The operations of kernels/cuda/ops: compiled by nvcc here, by the host compiler in tests/simt.
file(GLOB SPEEDRUN_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/ops/*.cu)

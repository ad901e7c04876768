# The operations of kernels/cuda: compiled by nvcc here, by the host compiler in tests/simt.
set(SPEEDRUN_CUDA_SOURCES
  activation.cu adamw.cu attention.cu cross_entropy.cu cuda_ops.cu embedding.cu matmul.cu mix.cu muon.cu norm.cu
  normuon.cu polar_express.cu random.cu rotary.cu sort_ids.cu utilities.cu)
list(TRANSFORM SPEEDRUN_CUDA_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)

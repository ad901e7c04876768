# The operations of kernels/cuda/ops: compiled by nvcc here, by the host compiler in tests/simt.
file(GLOB SPEEDRUN_CUDA_FILES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/ops/*.cu)
set(SPEEDRUN_CUDA_SOURCES ${SPEEDRUN_CUDA_FILES})
# CMake batches no CUDA. Headers, which nvcc reads four times, are 7 of the 9 s that a small file takes. What a file has for itself
# is in a namespace called as it.
if(SPEEDRUN_UNITY)
  set(alone ${CMAKE_CURRENT_LIST_DIR}/ops/attention.cu)  # takes long by itself
  list(REMOVE_ITEM SPEEDRUN_CUDA_SOURCES ${alone})
  set(batches 5)
  foreach(i RANGE 1 ${batches})
    set(includes_${i} "")
  endforeach()
  set(i 0)
  foreach(source ${SPEEDRUN_CUDA_SOURCES})
    math(EXPR i "${i} % ${batches} + 1")
    string(APPEND includes_${i} "#include \"${source}\"\n")
  endforeach()
  set(SPEEDRUN_CUDA_SOURCES ${alone})
  foreach(i RANGE 1 ${batches})
    set(batch ${CMAKE_BINARY_DIR}/kernels/cuda/batches/ops_${i}.cu)
    file(CONFIGURE OUTPUT ${batch} CONTENT "${includes_${i}}" @ONLY)
    list(APPEND SPEEDRUN_CUDA_SOURCES ${batch})
  endforeach()
endif()

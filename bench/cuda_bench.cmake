# cuda_bench (scripts/gpu-check). Included by bench/CMakeLists.txt; in a build without CUDA by
# tests/cuda/tests.cmake, which rehearses it.
#
# rope_cuda_bench(INCLUDE LIBRARY..): INCLUDE has cuda_runtime_api.h.
set(rope_cuda_bench_dir ${CMAKE_CURRENT_LIST_DIR})
function(rope_cuda_bench include)
  set(sources cuda_bench cuda_fused cuda_rows cuda_timer)
  list(TRANSFORM sources PREPEND ${rope_cuda_bench_dir}/)
  list(TRANSFORM sources APPEND .cc)
  add_executable(cuda_bench ${sources})
  target_include_directories(cuda_bench PRIVATE ${rope_cuda_bench_dir})
  target_include_directories(cuda_bench SYSTEM PRIVATE ${include})
  target_link_libraries(cuda_bench PRIVATE ${ARGN} Threads::Threads)
endfunction()
if(NOT ROPE_CUDA_FOUND)
  return()
endif()
set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda_kernels.o)
rope_nvcc(${rope_cuda_bench_dir}/cuda_kernels.cu ${object} ${object}.ptxas.txt)
set_source_files_properties(${object} PROPERTIES GENERATED ON EXTERNAL_OBJECT ON)
rope_cuda_bench(${ROPE_CUDA_INCLUDE} librope::librope ${ROPE_CUDA_LIBRARIES})
target_sources(cuda_bench PRIVATE ${object})

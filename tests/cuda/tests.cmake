# Tests of the CUDA backend. Included by tests/CMakeLists.txt.

# Run everywhere: walk the grid on the host.
set(walks cuda_grid_test launch_test repeat_grid_test staged_gradients_test staged_grid_test
  staged_norms_test staged_outputs_test)
list(TRANSFORM walks PREPEND gpu/ OUTPUT_VARIABLE paths)
rope_tests(librope_objects ${paths})
rope_label(cuda ${walks})
if(ROPE_SANITIZE MATCHES undefined)
  foreach(name IN LISTS walks)
    target_compile_options(${name} PRIVATE -fsanitize=null,alignment)
  endforeach()
endif()
if(NOT ROPE_CUDA_FOUND)
  list(TRANSFORM ROPE_GPU_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE sources)
  add_library(rope_gpu_objects OBJECT ${sources})
  target_include_directories(rope_gpu_objects PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(rope_gpu_objects PRIVATE ${ROPE_TEST_FLAGS})
  target_link_libraries(rope_gpu_objects PRIVATE librope_objects)
  foreach(name IN LISTS walks)
    target_link_libraries(${name} PRIVATE rope_gpu_objects)
  endforeach()
  return()
endif()

# Skips its tests where there is no GPU. Takes the library as a user's program does, with a CUDA
# runtime of its own.
rope_tests(librope::librope cuda/cuda_test)
target_include_directories(cuda_test SYSTEM PRIVATE ${ROPE_CUDA_INCLUDE})
target_link_libraries(cuda_test PRIVATE ${ROPE_CUDA_LIBRARIES})
rope_label(cuda cuda_test)
set_property(TEST cuda_test APPEND PROPERTY LABELS gpu)

# What was built: resources and machine code of the kernels, symbols, size.
find_program(ROPE_PYTHON python3)
if(ROPE_BUILD_SHARED AND ROPE_PYTHON AND NOT ROPE_SANITIZE)
  add_library(rope_without_cuda SHARED $<TARGET_OBJECTS:librope_objects>
    ${PROJECT_SOURCE_DIR}/src/cuda/none.cc)
  target_include_directories(rope_without_cuda PRIVATE
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(rope_without_cuda PRIVATE Threads::Threads)
  target_link_options(rope_without_cuda PRIVATE
    -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/librope.map)
  add_test(NAME cuda_build_test
    COMMAND ${ROPE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/cuda_build_test.py
      --library $<TARGET_FILE:librope> --without $<TARGET_FILE:rope_without_cuda>
      --object ${ROPE_CUDA_OBJECT} --report ${ROPE_CUDA_REPORT} --nvcc ${ROPE_NVCC})
  rope_label(cuda cuda_build_test)
  add_dependencies(cuda_tests librope rope_without_cuda)
  set_tests_properties(cuda_build_test PROPERTIES SKIP_REGULAR_EXPRESSION "^SKIPPED")
endif()

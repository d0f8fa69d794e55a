# Tests of the CUDA backend. Included by tests/CMakeLists.txt.

# Run everywhere: walk the grid on the host.
set(walks cuda_grid_test launch_test repeat_grid_test staged_gradients_test staged_grid_test
  staged_held_test staged_norms_test staged_outputs_test)
list(TRANSFORM walks PREPEND gpu/ OUTPUT_VARIABLE paths)
rope_tests(librope_objects ${paths})
rope_label(cuda ${walks})
# The kernels, once for all of these.
add_library(rope_gpu_walk OBJECT gpu/gradient_walk.cc gpu/staged_walk.cc gpu/walk.cc)
target_include_directories(rope_gpu_walk PRIVATE
  ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_options(rope_gpu_walk PRIVATE ${ROPE_TEST_FLAGS})
target_link_libraries(rope_gpu_walk PRIVATE GTest::gtest)
if(ROPE_SANITIZE MATCHES undefined)
  target_compile_options(rope_gpu_walk PRIVATE -fsanitize=null,alignment)
endif()
foreach(name IN LISTS walks)
  target_link_libraries(${name} PRIVATE rope_gpu_walk)
endforeach()
if(NOT ROPE_CUDA_FOUND)
  list(TRANSFORM ROPE_GPU_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE sources)
  add_library(rope_gpu_objects OBJECT ${sources})
  target_include_directories(rope_gpu_objects PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(rope_gpu_objects PRIVATE ${ROPE_TEST_FLAGS})
  target_link_libraries(rope_gpu_objects PRIVATE librope_objects)
  foreach(name IN LISTS walks)
    target_link_libraries(${name} PRIVATE rope_gpu_objects)
  endforeach()
endif()

# With a GPU. They are skipped without one; in a build without CUDA a stand-in for its runtime walks
# the kernels of a part of their calls, so that no test is new where there is a GPU.
set(devices cuda_gradients_test cuda_graphs_test cuda_norms_test cuda_outputs_test
  cuda_repeats_test)
list(TRANSFORM devices PREPEND cuda/ OUTPUT_VARIABLE paths)
if(ROPE_CUDA_FOUND)
  set(runtime ${ROPE_CUDA_INCLUDE})
  rope_tests(librope_objects ${paths})
  # Takes the library as a user's program does, with a CUDA runtime of its own.
  rope_tests(librope::librope cuda/cuda_test)
  rope_tests(librope::librope cuda/cuda_arithmetic_test)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda_arithmetic.o)
  rope_nvcc(${CMAKE_CURRENT_SOURCE_DIR}/cuda/arithmetic.cu ${object} ${object}.ptxas.txt)
  set_source_files_properties(${object} PROPERTIES GENERATED ON EXTERNAL_OBJECT ON)
  target_sources(cuda_arithmetic_test PRIVATE ${object})
  target_link_libraries(cuda_arithmetic_test PRIVATE ${ROPE_CUDA_LIBRARIES})
  list(APPEND devices cuda_arithmetic_test)
  target_link_libraries(cuda_test PRIVATE ${ROPE_CUDA_LIBRARIES})
else()
  set(runtime ${CMAKE_CURRENT_SOURCE_DIR}/cuda/stand_in)
  add_library(rope_stand_in STATIC cuda/stand_in/runtime.cc $<TARGET_OBJECTS:rope_gpu_objects>
    $<TARGET_OBJECTS:rope_gpu_walk>
    $<FILTER:$<TARGET_OBJECTS:librope_objects>,EXCLUDE,cuda/none>)
  target_include_directories(rope_stand_in PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_include_directories(rope_stand_in PUBLIC ${PROJECT_SOURCE_DIR}/src
    ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(rope_stand_in PRIVATE ${ROPE_TEST_FLAGS})
  target_link_libraries(rope_stand_in PUBLIC GTest::gtest Threads::Threads)
  rope_tests(rope_stand_in cuda/cuda_test ${paths})
endif()
foreach(name IN ITEMS cuda_test ${devices})
  target_sources(${name} PRIVATE support/heap.cc)
  target_include_directories(${name} SYSTEM PRIVATE ${runtime})
endforeach()
rope_label(cuda cuda_test ${devices})
rope_label(gpu cuda_test ${devices})
if(NOT ROPE_CUDA_FOUND)
  set(environment ROPE_TEST_DIVIDE=20)
  if(CMAKE_CROSSCOMPILING) # an emulator does not start a program again that asks for it
    list(APPEND environment GTEST_FILTER=-CudaUnavailable.*)
  endif()
  set_tests_properties(cuda_test ${devices} PROPERTIES ENVIRONMENT "${environment}")
  # And scripts/gpu-check with them, and with its benchmark, whose buffers nobody frees.
  if(NOT ROPE_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    include(${PROJECT_SOURCE_DIR}/bench/cuda_bench.cmake)
    rope_cuda_bench(${runtime} rope_stand_in)
    target_sources(cuda_bench PRIVATE cuda/stand_in/kernels.cc)
    set_target_properties(cuda_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
    add_test(NAME gpu_check_test COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu_check_test.sh
      ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR})
    rope_label(gpu gpu_check_test)
    add_dependencies(gpu_tests cuda_bench)
  endif()
  return()
endif()

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

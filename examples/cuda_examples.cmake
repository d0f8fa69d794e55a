# Examples that need the CUDA runtime's headers. Included by examples/CMakeLists.txt.
if(NOT ROPE_CUDA_FOUND)
  return()
endif()
foreach(name cuda_stream cuda_graph)
  rope_example(${name} ${name}.c)
  target_include_directories(example_${name} SYSTEM PRIVATE ${ROPE_CUDA_INCLUDE})
  target_link_libraries(example_${name} PRIVATE ${ROPE_CUDA_LIBRARIES})
  if(COMMAND rope_label) # not where this folder builds alone
    rope_label(cuda example_${name})
  endif()
endforeach()

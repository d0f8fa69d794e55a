# Examples that several processes run. Included by examples/CMakeLists.txt. Where there is no MPI they
# are no programs, and their test is skipped. Sanitizers find what MPI itself leaks, and a cross compiler
# the MPI of this machine.
if(CMAKE_CROSSCOMPILING OR ROPE_SANITIZE)
  return()
endif()
find_package(MPI QUIET COMPONENTS C)
if(NOT MPI_C_FOUND)
  add_test(NAME example_mpi_context_parallel COMMAND ${CMAKE_COMMAND} -E echo
    "skipped: there is no MPI (Debian's libopenmpi-dev and openmpi-bin)")
  set_tests_properties(example_mpi_context_parallel PROPERTIES SKIP_REGULAR_EXPRESSION skipped)
  return()
endif()

function(rope_mpi_example name source)
  rope_program(${name} ${source})
  target_link_libraries(example_${name} PRIVATE MPI::MPI_C)
  foreach(ranks 2 4)
    add_test(NAME example_${name}_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
      $<TARGET_FILE:example_${name}> ${ARGN})
    # Open MPI, as root in a container, and with fewer CPUs than ranks: its --allow-run-as-root and
    # --oversubscribe, which other programs for MPI refuse.
    set_tests_properties(example_${name}_${ranks} PROPERTIES PROCESSORS ${ranks} ENVIRONMENT
      "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1")
  endforeach()
endfunction()

rope_mpi_example(mpi_context_parallel mpi_context_parallel.c contiguous striped zigzag zigzag-documents)

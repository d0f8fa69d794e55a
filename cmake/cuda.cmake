# The CUDA backend. Finds nvcc, the system's or the one in PyPI's CUDA wheels (scripts/setup-cuda),
# and compiles src/cuda/backend.cu with it directly: CMake's own CUDA language expects the layout of
# a toolkit installed system-wide, which the wheels do not have.
#
#   ROPE_CUDA                AUTO: when nvcc is found and works; ON: required; OFF
#   ROPE_CUDA_ARCHITECTURES  such as "80;90"; "75-virtual": PTX of it alone, which drivers compile; empty:
#                            all that the library supports
#   ROPE_CUDA_VENV           Python environment with the wheels; also an environment variable
#
# Sets ROPE_GPU_SOURCES, what cuts calls into launches (tests walk them without CUDA, too),
# ROPE_CUDA_SOURCES, and if CUDA is on ROPE_CUDA_FOUND, ROPE_NVCC, ROPE_CUDA_INCLUDE,
# ROPE_CUDA_LIBRARIES, ROPE_CUDA_OBJECT, ROPE_CUDA_REPORT (what ptxas says of every kernel), and the
# function rope_nvcc.
set(ROPE_CUDA AUTO CACHE STRING "CUDA backend: AUTO, ON or OFF")
set_property(CACHE ROPE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(ROPE_CUDA_ARCHITECTURES "" CACHE STRING "GPU architectures; empty: all supported")
set(ROPE_CUDA_VENV "$ENV{ROPE_CUDA_VENV}" CACHE PATH "Python environment with CUDA wheels")

# Puts the kernels into librope, and into what links librope_objects.
function(rope_link_cuda)
  if(NOT ROPE_CUDA_FOUND)
    return()
  endif()
  add_custom_target(librope_cuda_kernels DEPENDS ${ROPE_CUDA_OBJECT})
  add_dependencies(librope_objects librope_cuda_kernels)
  set_source_files_properties(${ROPE_CUDA_OBJECT} PROPERTIES GENERATED ON EXTERNAL_OBJECT ON)
  target_sources(librope PRIVATE ${ROPE_CUDA_OBJECT})
  target_link_libraries(librope PRIVATE ${ROPE_CUDA_LIBRARIES})
  target_link_libraries(librope_objects INTERFACE ${ROPE_CUDA_OBJECT} ${ROPE_CUDA_LIBRARIES})
endfunction()

set(ROPE_CUDA_FOUND OFF)
set(ROPE_CUDA_SOURCES src/cuda/none.cc)
set(ROPE_GPU_SOURCES src/gpu/gradient_launch.cc src/gpu/launch.cc src/gpu/parts.cc src/gpu/plain.cc
  src/gpu/repeat.cc src/gpu/shape.cc src/gpu/staged_launch.cc src/gpu/vectors.cc)
string(TOUPPER "${ROPE_CUDA}" rope_cuda)
if(NOT rope_cuda MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|1|0)$")
  message(FATAL_ERROR "ROPE_CUDA (${ROPE_CUDA}) must be AUTO, ON or OFF")
endif()
if(rope_cuda MATCHES "OFF|FALSE|0" OR (rope_cuda STREQUAL AUTO AND CMAKE_CROSSCOMPILING))
  return()
endif()

# ON fails, AUTO goes on without CUDA.
macro(rope_cuda_unusable reason)
  if(rope_cuda STREQUAL AUTO)
    message(STATUS "librope: no CUDA: ${reason}")
    return()
  endif()
  message(FATAL_ERROR "ROPE_CUDA=${ROPE_CUDA}: ${reason}. scripts/setup-cuda installs a compiler.")
endmacro()

# Where the wheels of one Python environment lie. Only ON, which must find a compiler, runs the Python
# of PATH to ask for it.
set(wheels "")
foreach(venv ${ROPE_CUDA_VENV} ${CMAKE_CURRENT_SOURCE_DIR}/build/cuda-venv $ENV{VIRTUAL_ENV})
  file(GLOB found ${venv}/lib/python3*/site-packages/nvidia/cu1[2-9]/bin)
  list(APPEND wheels ${found})
endforeach()
if(NOT wheels AND NOT rope_cuda STREQUAL AUTO)
  find_program(ROPE_PYTHON python3)
  if(ROPE_PYTHON)
    execute_process(
      COMMAND ${ROPE_PYTHON} -c "import nvidia.cu13 as cu; print(list(cu.__path__)[0] + '/bin')"
      OUTPUT_VARIABLE wheels ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()
set(ROPE_NVCC "")
foreach(given "${CMAKE_CUDA_COMPILER}" "$ENV{CUDACXX}")
  if(NOT ROPE_NVCC AND EXISTS "${given}")
    set(ROPE_NVCC "${given}")
  endif()
endforeach()
if(NOT ROPE_NVCC)
  find_program(ROPE_NVCC_FOUND nvcc PATHS /usr/local/cuda/bin ${wheels})
  if(NOT ROPE_NVCC_FOUND)
    unset(ROPE_NVCC_FOUND CACHE)
    rope_cuda_unusable("nvcc was not found")
  endif()
  set(ROPE_NVCC ${ROPE_NVCC_FOUND})
endif()

file(REAL_PATH ${ROPE_NVCC} real_nvcc)
cmake_path(GET real_nvcc PARENT_PATH bin)
cmake_path(GET bin PARENT_PATH root)
set(places ${root} ${root}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux)
find_path(ROPE_CUDA_INCLUDE cuda_runtime_api.h PATHS ${places} PATH_SUFFIXES include
  NO_DEFAULT_PATH)
find_library(ROPE_CUDART libcudart_static.a PATHS ${places} PATH_SUFFIXES lib64 lib
  NO_DEFAULT_PATH)
foreach(part ROPE_CUDA_INCLUDE ROPE_CUDART)
  if(NOT ${part})
    unset(${part} CACHE)
    rope_cuda_unusable("${ROPE_NVCC} has no cuda_runtime_api.h or libcudart_static.a beside it")
  endif()
endforeach()

execute_process(COMMAND ${ROPE_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" _ "${version}")
set(ROPE_CUDA_VERSION "${CMAKE_MATCH_1}")
if(NOT ROPE_CUDA_VERSION VERSION_GREATER_EQUAL 12.0)
  rope_cuda_unusable("${ROPE_NVCC} is version \"${ROPE_CUDA_VERSION}\", and 12.0 is needed")
endif()

# Machine code for these, and PTX for what comes later. 86 and 89 run the code of 80.
execute_process(COMMAND ${ROPE_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
set(architectures ${ROPE_CUDA_ARCHITECTURES})
if(NOT architectures)
  foreach(architecture 75 80 90 100 120)
    if(known MATCHES "sm_${architecture}[^0-9]")
      list(APPEND architectures ${architecture})
    endif()
  endforeach()
endif()
set(nvcc_flags -std=c++17 -O3 -fmad=false -ccbin ${CMAKE_CXX_COMPILER})
foreach(architecture ${architectures})
  string(REPLACE "-virtual" "" number ${architecture})
  set(code sm_${number})
  if(architecture MATCHES "-virtual$")
    set(code compute_${number})
  endif()
  list(APPEND nvcc_flags -gencode arch=compute_${number},code=${code})
endforeach()
if(NOT ROPE_CUDA_ARCHITECTURES)
  list(APPEND nvcc_flags -gencode arch=compute_90,code=compute_90)
endif()
if(ROPE_CUDA_VERSION VERSION_GREATER_EQUAL 12.9)
  list(APPEND nvcc_flags --compress-mode=size)
else()
  list(APPEND nvcc_flags -Xfatbin -compress-all)
endif()
set(host_flags -fPIC -fvisibility=hidden -ffp-contract=off -Wall -Wextra)
if(ROPE_SANITIZE)
  string(REPLACE "," "\\," sanitizers "${ROPE_SANITIZE}")
  list(APPEND host_flags "-fsanitize=${sanitizers}" -fno-omit-frame-pointer)
endif()
foreach(flag ${host_flags})
  list(APPEND nvcc_flags -Xcompiler ${flag})
endforeach()

# nvcc accepts few host compilers: try this one.
set(probe ${CMAKE_CURRENT_BINARY_DIR}/cuda-probe)
file(WRITE ${probe}.cu "#include <cuda_runtime_api.h>\n#include <vector>\n__global__ void F() {}\n")
execute_process(COMMAND ${ROPE_NVCC} ${nvcc_flags} -c ${probe}.cu -o ${probe}.o
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  rope_cuda_unusable("${ROPE_NVCC} does not work with ${CMAKE_CXX_COMPILER}:\n${output}")
endif()

# rope_nvcc(SOURCE OBJECT REPORT): compiles one file; what ptxas says of it goes to REPORT.
function(rope_nvcc source object report)
  string(CONCAT script "report=$1; shift; if \"$@\" >$report 2>&1; "
    "then grep -E 'warning|error' $report || :; else cat $report; exit 1; fi")
  add_custom_command(OUTPUT ${object}
    COMMAND sh -c "${script}" sh ${report} ${ROPE_NVCC} ${nvcc_flags} -Xptxas -v
      -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
      -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d
    COMMENT "Building CUDA object ${object}" VERBATIM)
endfunction()

set(ROPE_CUDA_OBJECT ${CMAKE_CURRENT_BINARY_DIR}/cuda_backend.o)
set(ROPE_CUDA_REPORT ${CMAKE_CURRENT_BINARY_DIR}/cuda_backend.ptxas.txt)
rope_nvcc(${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/backend.cu ${ROPE_CUDA_OBJECT} ${ROPE_CUDA_REPORT})
set(ROPE_CUDA_SOURCES ${ROPE_GPU_SOURCES})
set(ROPE_CUDA_LIBRARIES ${ROPE_CUDART} ${CMAKE_DL_LIBS} rt)
set(ROPE_CUDA_FOUND ON)
list(JOIN architectures " " shown)
message(STATUS "librope: CUDA ${ROPE_CUDA_VERSION} for sm ${shown}: ${ROPE_NVCC}")

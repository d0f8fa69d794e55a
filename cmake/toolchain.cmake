# What the compiler and its flags mean for librope. Sets ROPE_CXX_LIBRARIES: what a C compiler needs
# to link librope.a, which is the C++ library that this compiler uses (libstdc++ or libc++), and libm.
set(ROPE_CXX_LIBRARIES m)
foreach(library IN LISTS CMAKE_CXX_IMPLICIT_LINK_LIBRARIES)
  if(library MATCHES "^(stdc|c)\\+\\+$")
    list(PREPEND ROPE_CXX_LIBRARIES ${library})
    break()
  endif()
endforeach()

# A parent's warnings and its -fno-exceptions are for its own sources: these stand behind them.
set(ROPE_OWN_FLAGS)
if(NOT PROJECT_IS_TOP_LEVEL)
  set(ROPE_OWN_FLAGS -w -fexceptions -frtti)
endif()

# librope_check_flags(): says what it does about flags of the surroundings that it cannot follow.
function(librope_check_flags)
  get_directory_property(options COMPILE_OPTIONS)
  string(TOUPPER "CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}" of_build_type)
  string(GENEX_STRIP "${options}" options)
  list(JOIN options " " options)
  set(flags "${CMAKE_CXX_FLAGS} ${${of_build_type}} ${options}")
  if(flags MATCHES "-Ofast|-ffast-math|-funsafe-math-optimizations")
    message(STATUS "librope: compiled without -ffast-math, which would change results")
  endif()
  if(flags MATCHES "-m(arch|cpu)=[^ ]*")
    message(STATUS "librope: with ${CMAKE_MATCH_0} it runs on such a CPU only; without, it chooses "
      "the instruction set at run time")
  endif()

  get_target_property(folder librope_highway INTERFACE_INCLUDE_DIRECTORIES)
  if(folder MATCHES "[$]<") # of a target that may not be built yet
    return()
  endif()
  include(CheckCXXSourceCompiles)
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY) # compile, do not link
  set(CMAKE_REQUIRED_INCLUDES ${folder})
  list(JOIN ROPE_OWN_FLAGS " " own)
  set(CMAKE_REQUIRED_FLAGS "${options} ${own}")
  check_cxx_source_compiles("
    #include <hwy/highway.h>
    static_assert(HWY_MAJOR * 10000 + HWY_MINOR * 100 + HWY_PATCH >= 10003, \"too old\");
    int x;" ROPE_HIGHWAY_COMPILES)
  if(NOT ROPE_HIGHWAY_COMPILES)
    unset(ROPE_HIGHWAY_COMPILES CACHE)
    message(FATAL_ERROR "librope: Highway in ${folder} is older than 1.0.3 or does not compile with "
      "the flags \"${flags}\". Before 1.0.5 it refuses -march=native on CPUs with AVX512-FP16; "
      "librope needs no -march, because it chooses the instruction set at run time.")
  endif()
endfunction()
librope_check_flags()

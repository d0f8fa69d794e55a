# Headers that librope is compiled with and that are not its own: Highway (src/cpu) and nlohmann/json
# (src/model). Nothing of them is linked, and users of the library do not need them. A target of the
# project around librope goes first.
#
#   ROPE_HIGHWAY_INCLUDE  folder of hwy/highway.h; found by default
#   ROPE_JSON_INCLUDE     folder of nlohmann/json.hpp; found by default
#
# Makes the targets librope_highway and librope_json.
find_package(PkgConfig QUIET)

# rope_headers(NAME FILE VARIABLE PKG_CONFIG_MODULE SOURCES TARGET..): the target librope_NAME.
function(rope_headers name file variable module sources)
  add_library(librope_${name} INTERFACE)
  foreach(target IN LISTS ARGN)
    if(TARGET ${target} AND NOT ${variable})
      message(STATUS "librope: ${file} of the target ${target}")
      target_include_directories(librope_${name} SYSTEM INTERFACE
        $<TARGET_PROPERTY:${target},INTERFACE_INCLUDE_DIRECTORIES>)
      return()
    endif()
  endforeach()
  if(NOT ${variable} AND PkgConfig_FOUND)
    pkg_check_modules(librope_${name} QUIET ${module})
  endif()
  find_path(${variable} ${file} HINTS ${librope_${name}_INCLUDE_DIRS} DOC "Folder of ${file}")
  if(NOT ${variable})
    message(FATAL_ERROR "librope needs the headers of ${sources}, and ${file} was not found. "
      "If it lies in an unusual place, say -D${variable}=<folder that has ${file}>.")
  endif()
  message(STATUS "librope: ${file} in ${${variable}}")
  target_include_directories(librope_${name} SYSTEM INTERFACE ${${variable}})
endfunction()

rope_headers(highway hwy/highway.h ROPE_HIGHWAY_INCLUDE libhwy
  "Highway 1.0.3 or later (Debian: libhwy-dev; https://github.com/google/highway)"
  hwy hwy::hwy)
rope_headers(json nlohmann/json.hpp ROPE_JSON_INCLUDE nlohmann_json
  "nlohmann/json 3.10 or later (Debian: nlohmann-json3-dev; https://github.com/nlohmann/json)"
  nlohmann_json::nlohmann_json nlohmann_json)

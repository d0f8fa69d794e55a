# Header, library, librope.pc and the CMake package. Everything finds itself relative to where it
# lies, so the prefix can be moved.
include(CMakePackageConfigHelpers)

install(TARGETS rope EXPORT librope
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/librope DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/librope)
configure_package_config_file(cmake/librope-config.cmake.in librope-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(librope-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT librope NAMESPACE librope:: FILE librope-targets.cmake DESTINATION ${package_dir})
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/librope-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/librope-config-version.cmake
  DESTINATION ${package_dir})

# librope.pc: the prefix is the way up from the .pc file; absolute directories stay absolute.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH ROPE_PC_PREFIX
  ${CMAKE_INSTALL_PREFIX}/${pc_dir} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" ROPE_PC_PREFIX "${ROPE_PC_PREFIX}")
foreach(kind LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}}")
    set(ROPE_PC_${kind} "${CMAKE_INSTALL_${kind}}")
  else()
    set(ROPE_PC_${kind} "\${prefix}/${CMAKE_INSTALL_${kind}}")
  endif()
endforeach()
set(ROPE_PC_LIBS_PRIVATE "-lstdc++ -lm -lpthread")
if(ROPE_CUDA_FOUND) # the CUDA runtime is inside librope.so, but not inside librope.a
  list(JOIN ROPE_CUDA_LIBRARIES " -l" cuda_libraries) # a path, then names
  set(ROPE_PC_LIBS_PRIVATE "${cuda_libraries} ${ROPE_PC_LIBS_PRIVATE}")
endif()
set(ROPE_PC_REQUIRES_PRIVATE "libhwy")
configure_file(pkgconfig/librope.pc.in librope.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/librope.pc DESTINATION ${pc_dir})

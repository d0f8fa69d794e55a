# Header, library, librope.pc, the CMake package, and what a distribution wants beside them. The
# components are Runtime (librope.so.*, licences) and Development. Everything finds itself relative to
# where it lies, so the prefix can be moved, unless a directory was given as an absolute path.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

target_include_directories(librope INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(TARGETS librope EXPORT librope
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Development
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Runtime NAMELINK_COMPONENT Development)
install(DIRECTORY include/librope DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT Development
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

# OPTIONAL: a bundled copy of the sources (the Rust crate's) has no documents.
install(FILES LICENSE NOTICE THIRD-PARTY-NOTICES
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT Runtime OPTIONAL)
# Links of an installed page to what is not installed lead to the repository: it and all guides are
# there. `folder` is that of the page, and begins what it names: "" or "docs/".
function(install_page page folder)
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${page})
    return()
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})
  file(READ ${page} text)
  set(blob "](https://github.com/librope/librope/blob/main/")
  if(folder STREQUAL "")
    string(REGEX REPLACE "\\]\\(([A-Za-z][^:)]*\\))" "${blob}\\1" text "${text}")
    foreach(installed docs/images/ docs/cuda.md docs/models.md examples CHANGELOG.md LICENSE)
      string(REPLACE "${blob}${installed}" "](${installed}" text "${text}")
    endforeach()
  else()
    string(REGEX REPLACE "\\]\\(([A-Za-z][^:)]*\\))" "${blob}${folder}\\1" text "${text}")
    string(REPLACE "](../" "${blob}" text "${text}")
    string(REPLACE "${blob}examples/" "](../examples/" text "${text}")
  endif()
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/installed/${page} "${text}")
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/installed/${page}
    DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder} COMPONENT Development)
endfunction()
install_page(README.md "")
install_page(CHANGELOG.md "")
install_page(docs/cuda.md docs/)
install_page(docs/models.md docs/)
install(DIRECTORY docs/images # the guides are parts of a site: scripts/docs
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs COMPONENT Development OPTIONAL
  PATTERN "*.py" EXCLUDE)
install(DIRECTORY examples
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT Development OPTIONAL)
install(FILES docs/librope.3
  DESTINATION ${CMAKE_INSTALL_MANDIR}/man3 COMPONENT Development OPTIONAL)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/librope)
configure_file(cmake/librope-config.cmake.in librope-config.cmake @ONLY)
write_basic_package_version_file(librope-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT librope NAMESPACE librope:: FILE librope-targets.cmake
  DESTINATION ${package_dir} COMPONENT Development)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/librope-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/librope-config-version.cmake
  DESTINATION ${package_dir} COMPONENT Development)

# librope.pc: the prefix is the way up from the .pc file. With an absolute lib directory (Nix, Guix)
# there is no such way, and the prefix is absolute, too.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE "${pc_dir}")
  set(ROPE_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH up ${CMAKE_INSTALL_PREFIX}/${pc_dir} ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" up "${up}")
  set(ROPE_PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(kind LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}}")
    set(ROPE_PC_${kind} "${CMAKE_INSTALL_${kind}}")
  else()
    set(ROPE_PC_${kind} "\${prefix}/${CMAKE_INSTALL_${kind}}")
  endif()
endforeach()
list(JOIN ROPE_CXX_LIBRARIES " -l" ROPE_PC_LIBS_PRIVATE)
set(ROPE_PC_LIBS_PRIVATE "-l${ROPE_PC_LIBS_PRIVATE} -pthread")
if(ROPE_CUDA_FOUND) # the CUDA runtime is inside librope.so, but not inside librope.a
  list(JOIN ROPE_CUDA_LIBRARIES " -l" cuda_libraries) # a path, then names
  set(ROPE_PC_LIBS_PRIVATE "${cuda_libraries} ${ROPE_PC_LIBS_PRIVATE}")
endif()
# Without a librope.so beside it, the archive is what pkg-config --libs names.
set(ROPE_PC_LIBS "-lrope")
if(NOT ROPE_BUILD_SHARED)
  set(ROPE_PC_LIBS "-lrope ${ROPE_PC_LIBS_PRIVATE}")
  set(ROPE_PC_LIBS_PRIVATE "")
endif()
configure_file(pkgconfig/librope.pc.in librope.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/librope.pc DESTINATION ${pc_dir} COMPONENT Development)

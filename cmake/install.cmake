# What `make install PREFIX=DIR` puts where: the headers, both libraries, the `hocket` command, hocket.pc for pkg-config and a package for
# find_package(hocket). Each finds the others relative to itself, so a prefix may be moved.
include(CMakePackageConfigHelpers)

install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/hocket DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
set_target_properties(hocket_static PROPERTIES EXPORT_NAME static)
install(TARGETS hocket hocket_static EXPORT hocket
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET hocket_command)
  install(TARGETS hocket_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# find_package(hocket): hocket::hocket (shared) and hocket::static.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hocket)
install(EXPORT hocket NAMESPACE hocket:: FILE hocket-targets.cmake DESTINATION ${package_dir})
file(WRITE ${CMAKE_BINARY_DIR}/gen/hocket-config.cmake.in
[=[@PACKAGE_INIT@
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include("${CMAKE_CURRENT_LIST_DIR}/hocket-targets.cmake")
check_required_components(hocket)
]=])
configure_package_config_file(${CMAKE_BINARY_DIR}/gen/hocket-config.cmake.in ${CMAKE_BINARY_DIR}/gen/hocket-config.cmake
                              INSTALL_DESTINATION ${package_dir})
# Until 1.0 a minor version may change the ABI.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/gen/hocket-config-version.cmake VERSION ${PROJECT_VERSION}
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/gen/hocket-config.cmake ${CMAKE_BINARY_DIR}/gen/hocket-config-version.cmake
        DESTINATION ${package_dir})

# pkg-config hocket; with --static for libhocket.a.
file(RELATIVE_PATH up /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
file(WRITE ${CMAKE_BINARY_DIR}/gen/hocket.pc
"prefix=\${pcfiledir}/${up}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}

Name: hocket
Description: Collective communication for distributed training
Version: ${PROJECT_VERSION}
Cflags: -I\${includedir}
Libs: -L\${libdir} -lhocket
Libs.private: -lm -lpthread
")
install(FILES ${CMAKE_BINARY_DIR}/gen/hocket.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The Python package: `pip install .` runs this project with SKBUILD set and takes what the component `python` installs, the library and the
# command, beside the files of python/hocket. No file there is compiled for a Python, so one wheel serves all of them.
include(CheckSymbolExists)
check_symbol_exists(__GLIBC__ features.h HOCKET_GLIBC)
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|aarch64|arm64)$" OR NOT HOCKET_GLIBC)
  message(FATAL_ERROR "hocket runs on Linux x86-64 and aarch64 with glibc; this is ${CMAKE_SYSTEM_NAME} ${CMAKE_SYSTEM_PROCESSOR}.")
endif()
foreach(t hocket hocket_command)
  target_link_options(${t} PRIVATE -s)
endforeach()
install(PROGRAMS $<TARGET_FILE:hocket> DESTINATION hocket/lib RENAME libhocket.so COMPONENT python)
install(PROGRAMS $<TARGET_FILE:hocket_command> DESTINATION hocket/bin RENAME hocket COMPONENT python)

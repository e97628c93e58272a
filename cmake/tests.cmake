# Unit tests stand beside the code as src/<room>/<name>_test.c; whole-library tests in tests/. All are cmocka programs.
find_library(CMOCKA_LIBRARY cmocka)
find_path(CMOCKA_INCLUDE cmocka.h)
if(NOT CMOCKA_LIBRARY OR NOT CMOCKA_INCLUDE)
  message(WARNING "cmocka not found: unit tests are left out (Debian: libcmocka-dev)")
  return()
endif()
file(GLOB_RECURSE UNIT_TESTS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*_test.c ${CMAKE_SOURCE_DIR}/tests/*_test.c)
# Labels: `threads` for ThreadSanitizer (ranks as threads), `golden` for those that `make bless` rewrites.
set(THREAD_TESTS async_test conformance_test mismatch_test seen_test semantics_test train_test)
foreach(f ${UNIT_TESTS})
  get_filename_component(stem ${f} NAME_WE)
  add_executable(${stem} ${f})
  set_target_properties(${stem} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${stem} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests ${CMOCKA_INCLUDE})
  target_compile_definitions(${stem} PRIVATE _GNU_SOURCE SOURCE_DIR="${CMAKE_SOURCE_DIR}" BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${stem} PRIVATE hocket_static ${CMOCKA_LIBRARY})
  add_test(NAME ${stem} COMMAND ${stem})
  if(stem IN_LIST THREAD_TESTS)
    set_tests_properties(${stem} PROPERTIES LABELS threads)
  elseif(stem MATCHES "golden")
    set_tests_properties(${stem} PROPERTIES LABELS golden)
  endif()
endforeach()

# A build with planted faults must be caught by perf, the training example and the conformance suite.
add_library(hocket_faulty STATIC $<FILTER:$<TARGET_OBJECTS:hocket_objects>,EXCLUDE,src/exec/step\\.c> ${CMAKE_SOURCE_DIR}/src/exec/step.c)
target_include_directories(hocket_faulty PUBLIC ${CMAKE_SOURCE_DIR}/include PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(hocket_faulty PRIVATE _GNU_SOURCE HOCKET_BUILD HOCKET_FAULTS)
target_link_libraries(hocket_faulty PUBLIC Threads::Threads m)
foreach(pair "hocket_command:${TOOL_SOURCES}" "train_digits:${CMAKE_SOURCE_DIR}/examples/train_digits.c"
             "conformance_test:${CMAKE_SOURCE_DIR}/tests/conformance_test.c")
  string(REGEX REPLACE ":.*" "" stem "${pair}")
  string(REGEX REPLACE "^[^:]*:" "" sources "${pair}")
  add_executable(faulty_${stem} ${sources})
  string(REPLACE "hocket_command" "hocket" name ${stem})
  set_target_properties(faulty_${stem} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/faulty/bin OUTPUT_NAME ${name})
  target_include_directories(faulty_${stem} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests ${CMOCKA_INCLUDE})
  target_compile_definitions(faulty_${stem} PRIVATE _GNU_SOURCE)
  target_link_libraries(faulty_${stem} PRIVATE hocket_faulty ${CMOCKA_LIBRARY})
endforeach()
add_test(NAME fault_test COMMAND ${CMAKE_SOURCE_DIR}/tests/fault_test.sh ${CMAKE_BINARY_DIR})

add_executable(bad_calls ${CMAKE_SOURCE_DIR}/tests/bad_calls.c)
target_link_libraries(bad_calls PRIVATE hocket_static)

# Multi-process tests: scripts over the command and the examples.
foreach(script run_test run_examples run_tour run_bad_input run_trace)
  if(EXISTS ${CMAKE_SOURCE_DIR}/tests/${script}.sh)
    add_test(NAME ${script} COMMAND ${CMAKE_SOURCE_DIR}/tests/${script}.sh ${CMAKE_BINARY_DIR}/bin)
  endif()
endforeach()
add_test(NAME ladder COMMAND ${CMAKE_SOURCE_DIR}/scripts/ladder --quick --build ${CMAKE_BINARY_DIR}) # `make ladder` works, and its rungs agree
set_tests_properties(run_tour PROPERTIES LABELS unsanitized) # its seconds are those of an ordinary build
foreach(script run_consumers)
  if(EXISTS ${CMAKE_SOURCE_DIR}/tests/${script}.sh AND NOT HOCKET_SANITIZE)
    add_test(NAME ${script} COMMAND ${CMAKE_SOURCE_DIR}/tests/${script}.sh ${CMAKE_BINARY_DIR})
  endif()
endforeach()

# The Python package: passed over, with the reason, without the interpreter of `make python`.
add_test(NAME run_python COMMAND ${CMAKE_SOURCE_DIR}/tests/run_python.sh ${CMAKE_BINARY_DIR})
set_tests_properties(run_python PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2 LABELS unsanitized)

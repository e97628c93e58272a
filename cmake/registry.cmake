# Registries are data: a file registers by defining `const hki_<kind> hki_<kind>_<stem> = ...`. This greps for such definitions and
# writes one table a kind, so that adding a file is all it takes.
function(hocket_registry kind header table room)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${room}/*.c)
  list(SORT files)
  set(externs "")
  set(entries "")
  foreach(f ${files})
    file(STRINGS ${f} lines REGEX "^const hki_${kind} hki_${kind}_[a-z0-9_]+")
    foreach(line ${lines})
      string(REGEX MATCH "hki_${kind}_[a-z0-9_]+" name "${line}")
      string(APPEND externs "extern const hki_${kind} ${name};\n")
      string(APPEND entries "    &${name},\n")
    endforeach()
    set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${f})
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/gen/${table}.c CONTENT
"/* Generated from the definitions in src/${room}. */
#include \"${header}\"
${externs}
const hki_${kind} *const ${table}[] = {
${entries}    NULL,
};
")
endfunction()

hocket_registry(isa kern/kern.h hki_isas kern)
hocket_registry(algo algo/algo.h hki_algos algo)
hocket_registry(transport net/net.h hki_transports net)

# write_part_list(OUTPUT SET HEADER BASE FOLDER SUFFIX): writes a source with the constructor and fields() of class SET, a PartSet
# of BASE declared in HEADER, and sets OUTPUT to its path. Its parts: each header some_name.h of FOLDER that derives a class
# from BASE declares class SomeName, followed by SUFFIX.
function(write_part_list output set header base folder suffix)
  file(GLOB part_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.h)
  set(includes "#include \"${header}\"\n")
  set(visits "")
  set(defaults "")
  foreach(part ${part_headers})
    file(STRINGS ${part} declared REGEX "public ${base}[ ,]")
    if(NOT declared)
      continue()
    endif()
    get_filename_component(name ${part} NAME_WE)
    string(APPEND includes "#include \"${folder}/${name}.h\"\n")
    string(REPLACE "_" ";" words ${name})
    set(class "")
    foreach(word ${words})
      string(SUBSTRING ${word} 0 1 first)
      string(SUBSTRING ${word} 1 -1 rest)
      string(TOUPPER ${first} first)
      string(APPEND class ${first}${rest})
    endforeach()
    string(APPEND visits "    visit<${class}${suffix}>(v);\n")
    string(APPEND defaults "    set_default<${class}${suffix}>();\n")
  endforeach()
  set(file ${CMAKE_BINARY_DIR}/generated/${set}.cpp)
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT "// Made by train/fields/part_list.cmake.
@includes@
namespace speedrun {

@set@::@set@() {
@defaults@}

void @set@::fields([[maybe_unused]] FieldVisitor& v) {
@visits@}

}  // namespace speedrun
")
  set(${output} ${file} PARENT_SCOPE)
endfunction()

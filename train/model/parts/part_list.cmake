# Writes the list of this folder's parts of attention, ${part_list}: NAME.h declares a class NamePart.
file(GLOB part_headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.h)
set(includes "")
set(visits "")
set(defaults "")
foreach(header ${part_headers})
  file(STRINGS ${header} declared REGEX "public AttentionPart")
  if(NOT declared)
    continue()
  endif()
  get_filename_component(name ${header} NAME_WE)
  string(APPEND includes "#include \"train/model/parts/${name}.h\"\n")
  string(REPLACE "_" ";" words ${name})
  set(class "")
  foreach(word ${words})
    string(SUBSTRING ${word} 0 1 first)
    string(SUBSTRING ${word} 1 -1 rest)
    string(TOUPPER ${first} first)
    string(APPEND class ${first}${rest})
  endforeach()
  string(APPEND visits "    visit<${class}Part>(v);\n")
  string(APPEND defaults "    set_default<${class}Part>();\n")
endforeach()
set(part_list ${CMAKE_BINARY_DIR}/generated/attention_part_list.cpp)
file(CONFIGURE OUTPUT ${part_list} @ONLY CONTENT "// Made by train/model/parts/part_list.cmake.
@includes@
namespace speedrun {

AttentionParts::AttentionParts() {
@defaults@}

void AttentionParts::fields(FieldVisitor& v) {
@visits@}

}  // namespace speedrun
")

# Writes ${preset_list}: the text of every NAME.json of this folder, embedded in the program.
file(GLOB preset_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${preset_files})
set(texts "")
foreach(preset_file ${preset_files})
  get_filename_component(name ${preset_file} NAME_WE)
  file(READ ${preset_file} text)
  string(APPEND texts "    {\"${name}\", R\"json(${text})json\"},\n")
endforeach()
set(preset_list ${CMAKE_BINARY_DIR}/generated/preset_list.cpp)
file(CONFIGURE OUTPUT ${preset_list} @ONLY CONTENT "// Made by train/model/presets/preset_list.cmake.
#include \"train/config/presets.h\"

namespace speedrun {

const std::map<std::string, std::string>& presets() {
    static const std::map<std::string, std::string> kPresets = {
@texts@};
    return kPresets;
}

}  // namespace speedrun
")

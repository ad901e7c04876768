# Writes ${hf_python}: the text of every file of train/hf/python, embedded in the program.
file(GLOB python_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/python/*.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${python_files})
set(texts "")
foreach(python_file ${python_files})
  get_filename_component(name ${python_file} NAME)
  file(READ ${python_file} text)
  string(APPEND texts "    {\"${name}\", R\"python(${text})python\"},\n")
endforeach()
set(hf_python ${CMAKE_BINARY_DIR}/generated/hf_python.cpp)
file(CONFIGURE OUTPUT ${hf_python} @ONLY CONTENT "// Made by train/hf/hf_python.cmake.
#include \"train/hf/hf_speedrun.h\"

namespace speedrun {

const std::map<std::string, std::string>& hf_python_files() {
    static const std::map<std::string, std::string> kFiles = {
@texts@};
    return kFiles;
}

}  // namespace speedrun
")

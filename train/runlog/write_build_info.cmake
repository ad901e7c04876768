# Writes build_info.cpp with the commit that is being built; touches it only if something changed, so that a build
# without changes compiles nothing. Run by the target speedrun_build_info.
execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse HEAD OUTPUT_VARIABLE sha OUTPUT_STRIP_TRAILING_WHITESPACE
                ERROR_QUIET RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  set(sha "unknown")
else()
  execute_process(COMMAND git -C ${SOURCE_DIR} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND sha "-dirty")
  endif()
endif()
set(text "#include \"train/runlog/build_info.h\"\n
namespace speedrun {
const BuildInfo& build_info() {
    static const BuildInfo info{\"${VERSION}\", \"${sha}\", \"${COMPILER}\", \"${BUILD_TYPE}\", \"${FLAGS}\", ${HAS_MPI}, ${HAS_CUDA}};
    return info;
}
}  // namespace speedrun
")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL "${old}")
  file(WRITE ${OUTPUT} "${text}")
endif()

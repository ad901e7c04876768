# The list of shipped files. `cmake --install` installs the component runtime; CPack adds libraries; scripts/make_bundle.sh adds
# files for checks on another machine. Folders of the prefix: bin/, lib/speedrun/, share/doc/speedrun/, and share/speedrun/ with
# the layout of this repository. Programs search libraries in lib/speedrun/, then in the system's folders.
include(GNUInstallDirs)
set(tree ${CMAKE_INSTALL_DATADIR}/speedrun)
set(library_folder lib/speedrun)

set(check_programs op_bench gpu_report make_tokens kernels_tests)
if(TARGET gpu_tests)
  list(APPEND check_programs gpu_tests)
endif()
foreach(program speedrun ${check_programs})
  # RPATH instead of RUNPATH: it also applies to indirect dependencies.
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../${library_folder}")
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
endforeach()

install(TARGETS speedrun RUNTIME_DEPENDENCY_SET libraries RUNTIME COMPONENT runtime)
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(DIRECTORY configs DESTINATION ${tree} COMPONENT runtime)
install(PROGRAMS data/kjv/prepare.sh DESTINATION ${tree}/data/kjv COMPONENT runtime)
install(PROGRAMS data/fineweb10B/download.sh DESTINATION ${tree}/data/fineweb10B COMPONENT runtime)
install(PROGRAMS scripts/report.py DESTINATION ${tree}/scripts COMPONENT runtime)
install(FILES scripts/requirements.txt DESTINATION ${tree}/scripts COMPONENT runtime)
install(DIRECTORY scripts/speedrun_report DESTINATION ${tree}/scripts COMPONENT runtime PATTERN __pycache__ EXCLUDE)

install(TARGETS ${check_programs} RUNTIME_DEPENDENCY_SET check_libraries RUNTIME COMPONENT check EXCLUDE_FROM_ALL)
install(PROGRAMS scripts/gpu_check.sh scripts/gpu_check_shards.sh scripts/compare_peers.sh DESTINATION . COMPONENT check EXCLUDE_FROM_ALL)
install(FILES scripts/options.sh scripts/gpu_check_steps.sh scripts/gpu_check_tests.sh scripts/gpu_check_train.sh
  scripts/gpu_check_first.sh scripts/cuda_env.sh
  DESTINATION . COMPONENT check EXCLUDE_FROM_ALL)
install(DIRECTORY data/kjv DESTINATION ${tree}/data COMPONENT check EXCLUDE_FROM_ALL
  FILES_MATCHING PATTERN *.bin PATTERN dataset.json)
install(FILES records/gpu_checks/2026-11-27_h100.json DESTINATION ${tree}/records/gpu_checks COMPONENT check EXCLUDE_FROM_ALL)
install(FILES tests/runs/golden_kjv.json DESTINATION ${tree}/tests/runs COMPONENT check EXCLUDE_FROM_ALL)
install(FILES tests/bench/first_losses.json DESTINATION ${tree}/tests/bench COMPONENT check EXCLUDE_FROM_ALL)
install(DIRECTORY tests/bench/peers DESTINATION ${tree}/tests/bench COMPONENT check EXCLUDE_FROM_ALL FILES_MATCHING PATTERN *.py)

# All libraries that the programs load, except: the C and C++ library (the machine's must be at least as new), MPI (it must
# match the machine's launcher), and libraries of the driver and of CUDA's toolkit. Libraries that MPI loads too are the
# machine's, as a newer MPI needs newer ones.
set(not_ours "^ld-linux" "^linux-vdso" "^lib(c|m|pthread|dl|rt|resolv|stdc\\+\\+|gcc_s)\\.so" "^lib(mpi|open-rte|open-pal|pmix)"
  "^lib(cuda|cudart|cublas.*|cudnn.*|nccl|cupti|nv.*)\\.so")
if(MPI_C_FOUND)
  list(APPEND not_ours "^lib(crypto|z)\\.so")
endif()
foreach(set libraries check_libraries)
  install(RUNTIME_DEPENDENCY_SET ${set} PRE_EXCLUDE_REGEXES ${not_ours} POST_EXCLUDE_REGEXES "/ld-linux[^/]*$"
    LIBRARY DESTINATION ${library_folder} COMPONENT ${set} EXCLUDE_FROM_ALL)
endforeach()
# Licences of packed libraries and of header libraries in the program, if it is built with Debian's packages.
foreach(library libfmt libspdlog libutf8proc libzstd libcli11 nlohmann-json3)
  if(EXISTS /usr/share/doc/${library}-dev/copyright)
    install(FILES /usr/share/doc/${library}-dev/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR}/licenses RENAME ${library}
      COMPONENT libraries EXCLUDE_FROM_ALL)
  endif()
endforeach()

set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # packing does not build the tests
set(CPACK_GENERATOR TGZ)
if(EXISTS /etc/debian_version)
  list(APPEND CPACK_GENERATOR DEB)
endif()
set(CPACK_PACKAGE_FILE_NAME speedrun-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_MONOLITHIC_INSTALL ON)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};speedrun;runtime;/;${CMAKE_BINARY_DIR};speedrun;libraries;/")
set(CPACK_STRIP_FILES ON)

# One package for the building release of Debian or Ubuntu and all later ones. Libraries with release-specific names are packed;
# the others are dependencies, with all names of their packages. A package built on Debian 12 installs on 12 and 13.
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_NAME speedrun)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "the gpt-speedrun authors")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "One program that trains small language models on a CPU, on a GPU or on many of them.")
foreach(package libc6 libstdc++6)
  execute_process(COMMAND dpkg-query -W -f "\${source:Upstream-Version}" ${package} OUTPUT_VARIABLE version_of_${package} ERROR_QUIET)
endforeach()
set(CPACK_DEBIAN_PACKAGE_DEPENDS 
  "libc6 (>= ${version_of_libc6}), libstdc++6 (>= ${version_of_libstdc++6}), libgcc-s1, zlib1g, libssl3 | libssl3t64")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS bible-kjv)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "curl, python3-venv")
if(MPI_C_FOUND)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libopenmpi3 | libopenmpi3t64 | libopenmpi40")
  string(APPEND CPACK_DEBIAN_PACKAGE_RECOMMENDS ", openmpi-bin")
endif()
include(CPack)

# What ships, listed once. `cmake --install` takes the component runtime; CPack adds libraries; scripts/make_bundle.sh adds what
# a check on another machine needs. With the prefix as root: bin/, lib/, share/doc/speedrun/, and share/speedrun/, which has the
# layout of this repository. Programs look for libraries in lib/ beside them, then where the machine keeps its own.
include(GNUInstallDirs)
set(tree ${CMAKE_INSTALL_DATADIR}/speedrun)

set(check_programs op_bench gpu_report make_tokens kernels_tests)
if(TARGET gpu_tests)
  list(APPEND check_programs gpu_tests)
endif()
foreach(program speedrun ${check_programs})
  # RPATH and not RUNPATH: it also serves the libraries of our libraries.
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
endforeach()

install(TARGETS speedrun RUNTIME_DEPENDENCY_SET libraries RUNTIME COMPONENT runtime)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(DIRECTORY configs DESTINATION ${tree} COMPONENT runtime)
install(PROGRAMS data/kjv/prepare.sh DESTINATION ${tree}/data/kjv COMPONENT runtime)
install(PROGRAMS data/fineweb10B/download.sh DESTINATION ${tree}/data/fineweb10B COMPONENT runtime)

install(TARGETS ${check_programs} RUNTIME_DEPENDENCY_SET check_libraries RUNTIME COMPONENT check EXCLUDE_FROM_ALL)
install(PROGRAMS scripts/gpu_check.sh scripts/compare_peers.sh DESTINATION . COMPONENT check EXCLUDE_FROM_ALL)
install(FILES scripts/gpu_check_steps.sh scripts/gpu_check_tests.sh scripts/gpu_check_train.sh scripts/cuda_env.sh
  DESTINATION . COMPONENT check EXCLUDE_FROM_ALL)
install(DIRECTORY data/kjv DESTINATION ${tree}/data COMPONENT check EXCLUDE_FROM_ALL
  FILES_MATCHING PATTERN *.bin PATTERN dataset.json)
install(FILES tests/runs/golden_kjv.json DESTINATION ${tree}/tests/runs COMPONENT check EXCLUDE_FROM_ALL)
install(FILES tests/bench/first_losses.json DESTINATION ${tree}/tests/bench COMPONENT check EXCLUDE_FROM_ALL)
install(DIRECTORY tests/bench/peers DESTINATION ${tree}/tests/bench COMPONENT check EXCLUDE_FROM_ALL FILES_MATCHING PATTERN *.py)

# Every library that the programs load, but for the C and C++ library (the machine's must be as new as ours), MPI, which belongs
# to the machine's launcher, and what comes with the driver and CUDA's toolkit.
set(not_ours "^ld-linux" "^linux-vdso" "^lib(c|m|pthread|dl|rt|resolv|stdc\\+\\+|gcc_s)\\.so" "^lib(mpi|open-rte|open-pal|pmix)"
  "^lib(cuda|cudart|cublas.*|cudnn.*|nccl|cupti|nv.*)\\.so")
foreach(set libraries check_libraries)
  install(RUNTIME_DEPENDENCY_SET ${set} PRE_EXCLUDE_REGEXES ${not_ours} POST_EXCLUDE_REGEXES "/ld-linux[^/]*$"
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${set} EXCLUDE_FROM_ALL)
endforeach()

set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # packing does not build the tests
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_FILE_NAME speedrun-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_COMPONENTS_ALL runtime libraries)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
set(CPACK_STRIP_FILES ON)
include(CPack)

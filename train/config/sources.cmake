# What reads a config, for the library and, compiled apart, for the fuzz targets.
set(speedrun_config_sources
  ${CMAKE_CURRENT_LIST_DIR}/config.cpp
  ${CMAKE_CURRENT_LIST_DIR}/config_json.cpp
  ${CMAKE_CURRENT_LIST_DIR}/config_reader.cpp
  ${CMAKE_CURRENT_LIST_DIR}/config_keys.cpp
  ${CMAKE_CURRENT_LIST_DIR}/fp8.cpp
  ${CMAKE_CURRENT_LIST_DIR}/heads_check.cpp
  ${CMAKE_CURRENT_LIST_DIR}/injected_check.cpp
  ${CMAKE_CURRENT_LIST_DIR}/joins.cpp
  ${CMAKE_CURRENT_LIST_DIR}/model_config.cpp
  ${CMAKE_CURRENT_LIST_DIR}/model_parts.cpp
  ${CMAKE_CURRENT_LIST_DIR}/model_parts_check.cpp
  ${CMAKE_CURRENT_LIST_DIR}/network_numbers.cpp
  ${CMAKE_CURRENT_LIST_DIR}/optimizer_config.cpp
  ${CMAKE_CURRENT_LIST_DIR}/spell_out.cpp
  ${CMAKE_CURRENT_LIST_DIR}/stages.cpp
  ${CMAKE_CURRENT_LIST_DIR}/suggestion.cpp)

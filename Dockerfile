# Debian 12 with the packages of scripts/install_dependencies.sh and of clang, for the quickstart and the tests.
#   docker build -t speedrun . && docker run --rm -it speedrun                 # scripts/quickstart.sh (CMD)
#   docker run --rm -it speedrun scripts/test.sh                               # all tests
# The stage `dependencies` is for .devcontainer/, which mounts the sources instead of copying them.
FROM debian:12 AS dependencies
COPY scripts/install_dependencies.sh /tmp/scripts/
RUN sh /tmp/scripts/install_dependencies.sh tests \
    && apt-get install -y --no-install-recommends ca-certificates clang clang-format libclang-rt-14-dev \
    && rm -rf /var/lib/apt/lists/* /tmp/scripts
# Open MPI refuses to run as root, the user of a container, without these.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

FROM dependencies
COPY . /speedrun
WORKDIR /speedrun
CMD ["scripts/quickstart.sh"]

// Replaces mpi_transport.cpp in a build without MPI.
#include "kernels/device/error.h"
#include "train/comm/message_channel.h"

namespace speedrun {

std::string mpi_library_version() {
    return "";
}

std::unique_ptr<MessageTransport> make_mpi_transport() {
    throw_usage(
        "this process was started by an MPI launcher, but this build has no MPI: install one "
        "(libopenmpi-dev) and configure with -DSPEEDRUN_MPI=ON, or start a single process without mpirun");
}

}  // namespace speedrun

// Messages between ranks in separate processes: the interface that message_world needs from a transport such as MPI. No
// function blocks. The only wait is PeerWatch::wait, which detects lost peers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace speedrun {

// Sends and receives that were started together. Their memory must stay valid until test() returns true. The destructor cancels
// pending messages where possible (after an error).
class PendingMessages {
  public:
    virtual ~PendingMessages() = default;
    virtual void send(int peer, const void* data, int64_t bytes) = 0;
    virtual void receive(int peer, void* data, int64_t bytes) = 0;
    // Makes progress; returns true once all are complete. Error with exit code 5, naming the peer, if the transport reports an
    // error or a message has an unexpected size.
    virtual bool test() = 0;
    virtual int64_t num_pending() const = 0;
    virtual int first_pending_peer() const = 0;  // receives before sends; -1: none pending
};

// Channels are separate. Messages from one rank to another arrive in order per tag.
class MessageChannel {
  public:
    virtual ~MessageChannel() = default;
    virtual std::unique_ptr<PendingMessages> start(int tag) = 0;
    // Receives a message of at most `bytes` that has arrived from any rank. Returns the sender; -1 if there is none.
    virtual int try_receive(int tag, void* data, int64_t bytes) = 0;
};

class MessageTransport {
  public:
    virtual ~MessageTransport() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual int local_rank() const = 0;
    virtual int local_size() const = 0;
    // Collective over all ranks.
    virtual std::unique_ptr<MessageChannel> open_channel() = 0;
    // Ends the transport. All ranks call it, with no message pending.
    virtual void close() = 0;
    // Ends the processes of all ranks.
    [[noreturn]] virtual void kill_all(int exit_code) noexcept = 0;
};

// True if this process was started by mpirun or another launcher that supports MPI.
bool launched_with_mpi();
// Returns name and version of the MPI library; "" without one.
std::string mpi_library_version();
// Starts MPI with full thread support; usage error if this build has none.
std::unique_ptr<MessageTransport> make_mpi_transport();

}  // namespace speedrun

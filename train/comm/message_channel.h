// Messages between ranks that are processes: what the collectives of message_world need from a transport such
// as MPI. Nothing here blocks: the waiting is done in one place, PeerWatch::wait, which can tell that a peer
// is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace speedrun {

// Sends and receives that were started together. Memory stays valid until test() has returned true. Going
// earlier, after an error, cancels what can be cancelled.
class PendingMessages {
  public:
    virtual ~PendingMessages() = default;
    virtual void send(int peer, const void* data, int64_t bytes) = 0;
    virtual void receive(int peer, void* data, int64_t bytes) = 0;
    // Makes progress; true when all are complete. Error with exit code 5, naming the peer, if the transport
    // reports one or a message has another size than was expected.
    virtual bool test() = 0;
    virtual int64_t num_pending() const = 0;
    virtual int first_pending_peer() const = 0;  // receives before sends; -1: nothing is pending
};

// Messages of one channel never meet those of another; from one rank to another they arrive in order per tag.
class MessageChannel {
  public:
    virtual ~MessageChannel() = default;
    virtual std::unique_ptr<PendingMessages> start(int tag) = 0;
    // Takes a message of at most `bytes` that has arrived from anybody; the sender, or -1 if there is none.
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
    // Leaves in peace; all ranks call it, nothing is pending.
    virtual void close() = 0;
    // Ends the processes of all ranks.
    [[noreturn]] virtual void kill_all(int exit_code) noexcept = 0;
};

// Was this process started by mpirun or another launcher that speaks MPI?
bool launched_with_mpi();
// Name and version of the MPI library; "" without one.
std::string mpi_library_version();
// Starts MPI with full thread support; usage error if this build has none.
std::unique_ptr<MessageTransport> make_mpi_transport();

}  // namespace speedrun
